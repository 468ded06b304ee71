"""Starts a benchmark's ranks on this machine, and ends the benchmark when a signal asks for it."""

import os
import signal
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


def leave_by_signals() -> None:
    """SIGTERM, SIGINT and SIGHUP end the benchmark as an exception does, so that what it made is removed."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def leave(number: int, _frame: object) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)  # the removal is not to be interrupted
        sys.exit(128 + number)

    for one in signals:
        signal.signal(one, leave)
