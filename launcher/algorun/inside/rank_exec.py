"""A rank's parent where an engine (torchrun, mpirun) starts the ranks: a program of its own, `python -I -S` runs it.

It asks its host's supervisor what to run, gets argv, environment and the log pipes, starts the rank, reports its exact
exit status (torchrun and mpirun lose or change it), and leaves when the supervisor says so: a rank that has ended
early must not make the engine end ranks that are still saving.

Messages are one JSON object a line. To the supervisor: {"rank", "local_rank", "pid"}, {"started": pid} or
{"failed": why}, {"exited": returncode}. From it: {"argv", "cwd", "env", "keep"} with two descriptors, then
{"leave": code}. It stands between the engine and every rank, so it imports as little as it can: `socket` and
`subprocess` would double its start.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself makes enums of its numbers, 2 ms
import _socket
import json
import os
import sys

TYPE_CHECKING = False  # typing is not worth its 3 ms here
if TYPE_CHECKING:
    from typing import Any

CHUNK = 65536  # bytes
FD_BYTES = 4  # a C int
ANSWER_TIMEOUT_S = 60.0
DEFECT = 70


def _first(*names: str) -> int:
    return int(next(os.environ[name] for name in names if name in os.environ))


def _receive(channel: _socket.socket) -> tuple[dict[str, Any], list[int]]:
    data = b""
    fds: list[int] = []
    while not data.endswith(b"\n"):
        chunk, ancillary, _, _ = channel.recvmsg(CHUNK, _socket.CMSG_SPACE(2 * FD_BYTES))
        if not chunk:
            raise EOFError("the supervisor has gone")
        data += chunk
        for _level, _kind, packed in ancillary:
            numbers = [packed[at : at + FD_BYTES] for at in range(0, len(packed), FD_BYTES)]
            fds += [int.from_bytes(number, sys.byteorder) for number in numbers]
    message: dict[str, Any] = json.loads(data)
    return message, fds


def _send(channel: _socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def _start(order: dict[str, Any], out: int, err: int) -> int:
    """Starts the rank in a session of its own; returns its pid."""
    environ = dict(os.environ)
    environ.pop("PET_LOG_DIR", None)  # it was for our torchrun, not for one that the user's program may start
    kept = {name: environ[name] for name in order["keep"] if name in environ}
    os.chdir(order["cwd"])
    return os.posix_spawnp(
        order["argv"][0],
        order["argv"],
        environ | order["env"] | kept,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_DUP2, err, 2),
        ],
        setsid=True,
        setsigdef=[_signal.SIGPIPE, _signal.SIGXFSZ],  # Python ignores them; a user's program starts with the defaults
    )


def main() -> int:
    """The program. Returns the exit code for the engine."""
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    channel.settimeout(ANSWER_TIMEOUT_S)
    channel.connect(os.environ["ALGORUN_RUN_DIR"] + "/ranks")
    rank = _first("RANK", "OMPI_COMM_WORLD_RANK")
    local_rank = _first("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    _send(channel, {"rank": rank, "local_rank": local_rank, "pid": os.getpid()})
    order, (out, err) = _receive(channel)
    channel.settimeout(None)
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
        # The engine's own signals come too late or too early: the supervisor signals the rank.
        _signal.signal(number, lambda received, _: None)
    try:
        pid = _start(order, out, err)
    except OSError as error:
        _send(channel, {"failed": f"{error.filename or order['argv'][0]}: {error.strerror}"})
    else:
        _send(channel, {"started": pid})
        for fd in (out, err):
            os.close(fd)
        _, status = os.waitpid(pid, 0)
        try:
            _send(channel, {"exited": os.waitstatus_to_exitcode(status)})
        except OSError:
            pass  # the end of the supervisor is seen below
    leave, _ = _receive(channel)
    return int(leave["leave"])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (EOFError, OSError) as error:
        print(f"algorun: rank process: {error}", file=sys.stderr)
        sys.exit(DEFECT)
