"""Checkpoints: written aside and renamed, whole or in shards, read back on any number of ranks."""
