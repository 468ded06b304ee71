"""What a host says at the end: the failure's text, its hint, the closing line."""
