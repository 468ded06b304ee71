"""Brings home what a job left: archives, folders and the lines of all hosts."""
