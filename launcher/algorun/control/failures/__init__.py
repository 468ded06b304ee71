"""What a failure is, and its cause by the words that programs print. Pure."""
