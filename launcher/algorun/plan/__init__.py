"""The plan of an attempt: hosts, ranks, argv and environment of every process. Pure."""
