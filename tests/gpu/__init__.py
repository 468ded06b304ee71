"""Does algorun work on this machine's GPUs? `make gpu-test` runs the checks and writes docs/gpu.md.

machine.py says what the device is, checks/ holds the checks in groups, programs/ what runs as ranks, page.py the page.
The harness itself needs the standard library only; torch runs in the processes that it starts.
"""
