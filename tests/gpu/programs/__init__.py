"""What the checks run as ranks, or ask in a process of its own."""
