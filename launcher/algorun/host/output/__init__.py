"""What processes print: read, shown, and kept."""
