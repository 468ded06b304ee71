"""What ranks tell each other beside torch's collectives."""
