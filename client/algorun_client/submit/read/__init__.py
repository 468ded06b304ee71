"""What was asked for: the command line and the job file become a TaskSpec, with the files that it needs."""
