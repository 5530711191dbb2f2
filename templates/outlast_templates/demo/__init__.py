"""What `outlast demo` serves."""
