"""Several tasks of a job file: in which order they run, and when each may start."""
