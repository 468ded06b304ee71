"""What hosts say to each other, and what follows from it: the hub, a host's part, failures, hangs, restarts. Pure."""
