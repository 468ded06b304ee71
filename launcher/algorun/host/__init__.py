"""One host at work: the supervisor, its attempts, ranks and processes, and what they print."""
