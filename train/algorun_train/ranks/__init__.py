"""The ranks of a job: who they are, which device each has, how they join and move small data."""
