"""How a job's model is split: cut, profiled, decided on once, and the same on all ranks."""
