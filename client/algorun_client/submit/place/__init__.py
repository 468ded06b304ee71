"""One job for a request: claims the execution, uploads what has changed, creates the job. Safe to repeat after any crash."""
