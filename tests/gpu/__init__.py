"""Does algorun work on this machine's GPUs? `make test PART=gpu` runs the checks and writes docs/gpu.md.

machine.py says what the device is, checks/ holds the checks in groups, programs/ what runs as ranks, page.py the page.
The harness itself needs the standard library only; torch runs in the processes that it starts.
"""

import importlib.util
import sys
from pathlib import Path

# What each of the repository's packages is imported from.
PACKAGES = [Path(__file__).parents[2] / folder for folder in ("launcher", "train", "compat")]

if importlib.util.find_spec("algorun") is None:  # a Python with torch for CUDA need not have it
    sys.path[1:1] = map(str, PACKAGES)
