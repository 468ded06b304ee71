"""The commands: one module each, and the parser above them."""
