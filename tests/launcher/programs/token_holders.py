"""Prints, for each process whose environment holds the text in the file argv[1], the words of its command line, a line each."""

import contextlib
import os
import sys
import time
from pathlib import Path

token = Path(sys.argv[1]).read_bytes().strip()
time.sleep(float(sys.argv[2]))  # until the launcher's own helpers run too
for pid in filter(str.isdigit, os.listdir("/proc")):
    with contextlib.suppress(OSError):
        if token in Path("/proc", pid, "environ").read_bytes():
            print("holder:", Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode())
print("mine:", os.environ.get("ALGORUN_TOKEN"))
