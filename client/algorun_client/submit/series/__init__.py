"""Several jobs of one task, one after the other: until the task is done, and on other hosts where there is no room."""
