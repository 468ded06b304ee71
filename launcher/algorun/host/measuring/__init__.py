"""What is measured of this host and its ranks while they run."""
