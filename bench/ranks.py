"""Starts a benchmark's ranks on this machine."""

import os
import subprocess
import sys
from typing import IO

from algorun.common.free_ports import free_ports


def start(program: str, processes: int, argv: list[str], output: IO[str] | None = None, **more: str) -> None:
    """Runs `program` as that many gloo ranks with one thread each, and waits for them; `more` are variables, `output` gets
    what the ranks print."""
    port = free_ports("127.0.0.1", 1)[0]
    running = []
    for number in range(processes):
        environ = os.environ | more | {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(processes)}
        environ |= {"LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environ |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "bench", "OMP_NUM_THREADS": "1"}
        environ |= {"CUDA_VISIBLE_DEVICES": ""}
        running.append(subprocess.Popen([sys.executable, program, *argv], env=environ, stdout=output, stderr=output))
    codes = [process.wait() for process in running]
    if any(codes):
        sys.exit("error: a benchmark process failed")
