"""Pure data and rules: nothing here reads a clock, a socket, a file or a database."""
