"""The ranks of a job: their numbers, their devices, how they join, and how they exchange small data."""
