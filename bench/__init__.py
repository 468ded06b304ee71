"""Benchmarks (`make bench`): each is a program, and imports the others' parts as bench.NAME."""
