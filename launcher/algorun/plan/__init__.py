"""What will run where: hosts, ranks, argv and environment of every process. Pure."""
