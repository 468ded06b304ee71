"""The last rank runs out of what its first argument names; the others wait."""

from __future__ import annotations

import mmap
import os
import sys
import time

if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    if sys.argv[1] == "memory":
        time.sleep(1)  # the launcher counts what the kernel has killed from when the ranks run
        held = []
        while True:
            held.append(bytearray(b"x" * 2**20))
    elif sys.argv[1] == "shm":
        with open("/dev/shm/full", "w+b") as file:
            file.truncate(2**26)
            mmap.mmap(file.fileno(), 0).write(bytes(2**26))
    else:
        with open(f"{sys.argv[1]}/last.pt", "wb") as file:
            file.write(bytes(2**26))
time.sleep(120)
