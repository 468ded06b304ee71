"""Follows a job that runs: its phases, the lines of all its hosts, and how it ends."""
