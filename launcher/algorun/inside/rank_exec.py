"""The parent process of a rank if torchrun or mpirun starts the ranks: `python -I -S rank_exec.py`.

It gets argv, environment and log pipes from its host's supervisor, starts the rank, and reports its exact exit status:
torchrun and mpirun lose or change it. It exits only when the supervisor says so. Otherwise a rank that ends early would
make the engine kill ranks that are still saving.

Messages are lines with one JSON object. To the supervisor: {"rank", "local_rank", "pid"}, then {"started": pid} or
{"failed": "errno file"}, then {"exited": returncode}. From the supervisor: what to start, with two file descriptors, then
{"leave": exit code}. What to start is a line with a number of bytes, then that many bytes of `marshal`. Imports are few,
because every rank waits for them: `socket` and `subprocess` would double the start-up time, `json` takes 8 ms.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` costs 2 ms more: it makes enums
import _socket
import marshal
import os
import sys

CHUNK = 65536  # bytes
FD_BYTES = 4  # a C int
ANSWER_TIMEOUT_S = 60.0
DEFECT = 70


def _first(*names: str) -> int:
    return int(next(os.environ[name] for name in names if name in os.environ))


def _receive(channel: _socket.socket, data: bytes = b"") -> tuple[bytes, list[int]]:
    """`data` and more of what the supervisor sends, and the file descriptors sent with it. Raises EOFError at the end."""
    chunk, ancillary, _, _ = channel.recvmsg(CHUNK, _socket.CMSG_SPACE(2 * FD_BYTES))
    if not chunk:
        raise EOFError("the supervisor has closed its connection")
    fds: list[int] = []
    for _level, _kind, packed in ancillary:
        numbers = [packed[at : at + FD_BYTES] for at in range(0, len(packed), FD_BYTES)]
        fds += [int.from_bytes(number, sys.byteorder) for number in numbers]
    return data + chunk, fds


def _line(channel: _socket.socket) -> tuple[bytes, bytes, list[int]]:
    """The supervisor's next line, the bytes that have come behind it, and the file descriptors sent with it."""
    data, fds = _receive(channel)
    while b"\n" not in data:
        data, more = _receive(channel, data)
        fds += more
    line, _, rest = data.partition(b"\n")
    return line, rest, fds


class _Order:
    """The rank to start: `env` is added to this process's environment, except for the names in `keep`."""

    def __init__(self, argv: list[str], cwd: str, env: dict[str, str], keep: list[str]) -> None:
        self.argv, self.cwd, self.env, self.keep = argv, cwd, env, keep


def _receive_order(channel: _socket.socket) -> tuple[_Order, list[int]]:
    """What to start, and the descriptors of its output and its errors. Both programs run under one interpreter."""
    length, data, fds = _line(channel)
    while len(data) < int(length):
        data, more = _receive(channel, data)
        fds += more
    return _Order(*marshal.loads(data)), fds


def _start(order: _Order, out: int, err: int) -> int:
    """Starts the rank in a session of its own; returns its pid. Raises OSError."""
    environ = dict(os.environ)
    environ.pop("PET_LOG_DIR", None)  # for our own torchrun; a torchrun that the user's program starts must not see it
    kept = {name: environ[name] for name in order.keep if name in environ}
    os.chdir(order.cwd)
    # posix_spawnp gives a file that is no program to the shell, which then names another fault.
    spawn = os.posix_spawn if "/" in order.argv[0] else os.posix_spawnp
    return spawn(
        order.argv[0],
        order.argv,
        environ | order.env | kept,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_DUP2, err, 2),
        ],
        setsid=True,
        setsigdef=[_signal.SIGPIPE, _signal.SIGXFSZ],  # Python ignores these; a user's program starts with the defaults
    )


def main() -> int:
    """Runs the rank. Returns the exit code that the engine gets."""
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    channel.settimeout(ANSWER_TIMEOUT_S)
    channel.connect(os.environ["ALGORUN_RUN_DIR"] + "/ranks")
    rank = _first("RANK", "OMPI_COMM_WORLD_RANK")
    local_rank = _first("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    channel.sendall(b'{"rank": %d, "local_rank": %d, "pid": %d}\n' % (rank, local_rank, os.getpid()))
    order, (out, err) = _receive_order(channel)
    channel.settimeout(None)
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
        # The engine signals too early or too late, so its signals are ignored: the supervisor signals the rank.
        _signal.signal(number, lambda received, _: None)
    try:
        pid = _start(order, out, err)
    except OSError as error:
        import json  # late: only an error needs it

        reason = {"failed": f"{error.errno} {error.filename or order.argv[0]}"}
        channel.sendall(json.dumps(reason).encode() + b"\n")
    else:
        channel.sendall(b'{"started": %d}\n' % pid)
        for fd in (out, err):
            os.close(fd)
        _, status = os.waitpid(pid, 0)
        try:
            channel.sendall(b'{"exited": %d}\n' % os.waitstatus_to_exitcode(status))
        except OSError:
            pass  # the supervisor has ended: _receive raises
    line, _, _ = _line(channel)
    return int(line.removeprefix(b'{"leave": ').removesuffix(b"}"))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (EOFError, OSError) as error:
        print(f"algorun: rank process: {error}", file=sys.stderr)
        sys.exit(DEFECT)
