"""Removes a job's containers when its runner has ended, however: `python -I -m algorun_client.local.container_guard`.

Containers belong to Docker's engine, so the kernel does not end them with the runner. This process reads from a pipe
that the runner holds open; the kernel closes it, also if the runner is killed. A runner that asks for the removal itself
sends a byte before: then no call of it is under way.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

from algorun_client.common.errors import ApiError

from .containers import name_of, remove
from .docker_engine import DockerEngine
from .job_folder import JobFolder

# Looks after the first one: the engine may still carry out the last `docker create` of a runner that was killed.
LATER_S = (3.0, 10.0)


def start(engine: DockerEngine, job: Path) -> subprocess.Popen[bytes]:
    """Starts the guard of a job."""
    argv = [sys.executable, "-I", "-m", "algorun_client.local.container_guard", engine.address, str(job)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, cwd="/", start_new_session=True)


def has_removed(guard: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Lets the guard remove the containers now. False if it did not, because it was killed for example."""
    assert guard.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # somebody has killed it
        guard.stdin.write(b".")
        guard.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.close()
    try:
        return guard.wait(limit_s) == 0
    except subprocess.TimeoutExpired:
        return False


def main(argv: list[str]) -> int:
    """Waits for the end of stdin."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    engine, job = DockerEngine(argv[0]), Path(argv[1])
    is_asked = bool(sys.stdin.buffer.read())
    remove(engine, job)
    for wait_s in () if is_asked else LATER_S:
        time.sleep(wait_s)
        with contextlib.suppress(ApiError):  # whoever uses containers next looks too
            remove(engine, job, named=name_of(JobFolder.at(job)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
