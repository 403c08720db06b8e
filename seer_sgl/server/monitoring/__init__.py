"""What an operator sees of the server: `/metrics` and the live page `/`."""
