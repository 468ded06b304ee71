"""How this host gets ready for an attempt."""
