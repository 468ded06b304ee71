"""A rank's parent where an engine (torchrun, mpirun) starts the ranks: a program of its own, `python -I -S` runs it.

It asks its host's supervisor what to run, gets argv, environment and the log pipes, starts the rank, reports its exact
exit status (torchrun and mpirun lose or change it), and leaves when the supervisor says so: a rank that has ended
early must not make the engine end ranks that are still saving.

Messages are one JSON object a line. To the supervisor: {"rank", "local_rank", "pid"}, {"started": pid},
{"exited": returncode}. From it: {"argv", "cwd", "env", "keep"} with two descriptors, then {"leave": code}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

CHUNK = 65536  # bytes
ANSWER_TIMEOUT_S = 60.0


def _first(*names: str) -> int:
    return int(next(os.environ[name] for name in names if name in os.environ))


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data = b""
    fds: list[int] = []
    while not data.endswith(b"\n"):
        chunk, received, _, _ = socket.recv_fds(channel, CHUNK, 2)
        if not chunk:
            raise EOFError("the supervisor has gone")
        data += chunk
        fds += received
    message: dict[str, Any] = json.loads(data)
    return message, fds


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def main() -> int:
    """The program. Returns the exit code for the engine."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(ANSWER_TIMEOUT_S)
    channel.connect(os.environ["ALGORUN_RUN_DIR"] + "/ranks")
    hello = {
        "rank": _first("RANK", "OMPI_COMM_WORLD_RANK"),
        "local_rank": _first("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
        "pid": os.getpid(),
    }
    _send(channel, hello)
    order, (out, err) = _receive(channel)
    channel.settimeout(None)

    environ = dict(os.environ)
    environ.pop("PET_LOG_DIR", None)  # it was for our torchrun, not for one that the user's program may start
    kept = {name: environ[name] for name in order["keep"] if name in environ}
    environ |= order["env"] | kept
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The engine's own signals come too late or too early: the supervisor signals the rank.
        signal.signal(number, lambda received, _: stopped.append(received))
    try:
        child = subprocess.Popen(
            order["argv"],
            cwd=order["cwd"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    except OSError as error:
        _send(channel, {"failed": f"{error.filename}: {error.strerror}"})
    else:
        _send(channel, {"started": child.pid})
        for fd in (out, err):
            os.close(fd)
        code = child.wait()
        with contextlib.suppress(OSError):
            _send(channel, {"exited": code})
    leave, _ = _receive(channel)
    return int(leave["leave"])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (EOFError, OSError) as error:
        print(f"algorun: rank process: {error}", file=sys.stderr)
        sys.exit(70)
