"""Where the time of a job went: pure; the supervisor says what happened when."""
