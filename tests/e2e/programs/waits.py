"""Ranks that do nothing for long: what ends them comes from outside."""

import os
import time

print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} waits", flush=True)
time.sleep(600)
