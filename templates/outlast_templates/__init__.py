"""Hold the project templates that `outlast init` renders."""
