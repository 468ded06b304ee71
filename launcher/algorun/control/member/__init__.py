"""One host's part of the job. Pure."""
