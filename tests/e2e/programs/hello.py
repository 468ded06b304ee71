"""Prints what it was started with."""

import os
import sys

print(f"hello from rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} with {sys.argv[1:]}", flush=True)
