"""What this host does for the job's engine."""
