"""The supervisor's two Unix sockets: one for exceptions of its ranks, one for the processes that an engine starts."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import marshal
import os
import socket
from collections.abc import Callable, Mapping, Sequence

from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.common.event_loop import READ, Loop
from algorun.common.folders import remove_folder
from algorun.control.failures.failure import Raised
from algorun.control.failures.non_finite import NonFiniteValue

Fields = dict[str, int | str]  # of a message from rank_exec or rsh

LARGEST = 64 * 1024  # bytes of one message
SEND_TIMEOUT_S = 5.0
DEFAULT_TEMPORARY = "/tmp"
# The keys of each message: of rank_exec about its rank, and of rsh, which asks for a daemon.
FORMS = ({"rank", "local_rank", "pid"}, {"started"}, {"failed"}, {"exited"}, {"daemon", "command"})
PIDS = range(1, 1 << 22)  # Linux's largest pid_max
RANKS = range(1 << 31)
NUMBERS = {"rank": RANKS, "local_rank": RANKS, "pid": PIDS, "started": PIDS, "exited": range(-127, 256)}
MARSHAL = 2  # its format, which every version of Python reads
LONGEST_TEMPORARY = 70  # characters; a Unix socket's path has 107 in all
ROOM = 64 * 1024  # bytes that the folder must have space for: the steps of 100 ranks take 26 KB
# Ray's sockets lie in TMPDIR/algorun-123456789012/r999/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store,
# which is a socket, too.
LONGEST_FOR_RAY = 17  # characters of TMPDIR


def parse_raised(data: bytes) -> Raised | None:
    """The exception in a datagram of inside/rank_report.py, None where it is no such datagram."""
    fields = [field.decode("utf-8", "replace") for field in data.split(b"\0")]
    if len(fields) != 10:
        return None
    rank, pid, at, kind, message, traceback, parents, ended, command, explains = fields
    try:
        return Raised(
            int(rank),
            int(pid),
            float(at),
            kind,
            message,
            traceback,
            tuple((int(number), words) for number, _, words in map(_split, parents.split("\n")) if number),
            tuple((int(number), int(status)) for number, _, status in map(_split, ended.split("\n")) if number),
            command,
            bool(explains),
        )
    except ValueError:
        return None


def parse_non_finite(data: bytes) -> NonFiniteValue | None:
    """What a rank has found in a datagram of inside/rank_nonfinite.py, None where it is no such datagram."""
    fields = [field.decode("utf-8", "replace") for field in data.split(b"\0")]
    if len(fields) != 12 or fields[0] != "nonfinite":
        return None
    _, rank, step, earliest, of, value, name, names, total, place, at, mode = fields
    try:
        found = NonFiniteValue(
            rank=int(rank),
            step=int(step),
            earliest=int(earliest),
            of=int(of),
            value=value,
            name=name,
            names=int(names),
            total=int(total),
            place=place,
            at=float(at),
            mode=mode,
        )
    except ValueError:
        return None
    counts = found.rank, found.step, found.earliest, found.of, found.names, found.total
    return found if min(counts) >= 0 and max(counts) < 1 << 63 and found.of < 3 and 0 <= found.at < 1e9 else None


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


def parse_message(line: bytes) -> Fields | None:
    """A message of rank_exec or rsh. None if its keys are not in FORMS, or a value is of the wrong type or range."""
    try:
        message = loads(line)
    except ValueError:
        return None
    if not isinstance(message, dict) or set(message) not in FORMS:
        return None
    for name, value in message.items():
        limits = NUMBERS.get(name)
        if limits is None and not isinstance(value, str):
            return None
        if limits is not None and (type(value) is not int or value not in limits):
            return None
    return message


def run_folder(wanted: str, longest: int, default: str = DEFAULT_TEMPORARY) -> str:
    """Makes a folder for this user alone, in which sockets and a few small files can be made. It is below `default` where `wanted`
    is unusable: absent, read-only, full, without inodes, over a quota, or longer than `longest` characters.

    Raises UserError, which names both folders, where neither can be used.
    """
    base = os.path.abspath(wanted) if wanted else default
    why = ""
    if len(base) > longest:
        why = f"{base}: more than {longest} characters, too many for a socket's path; "
    else:
        try:
            return _made(base)
        except OSError as error:
            why = f"{base}: {error.strerror}; "
    if base != default:
        try:
            return _made(default)
        except OSError as error:
            why += f"{default}: {error.strerror}; "
    raise UserError(
        "TMPDIR", why.removesuffix("; "), fix="name a folder that can be written, with some space and inodes"
    )


def _made(base: str) -> str:
    """A folder below `base`, once a socket and ROOM bytes could be made in it. Raises OSError, and leaves nothing then."""
    folder = os.path.join(base, f"algorun-{os.urandom(6).hex()}")
    os.mkdir(folder, 0o700)
    try:
        probe = os.path.join(folder, "room")
        file = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            written = os.write(file, bytes(ROOM))
        finally:
            os.close(file)  # NFS refuses here what goes beyond a quota
        if written < ROOM:  # a file system takes as much as there is space for
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.unlink(probe)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:  # some file systems take none
            listener.bind(probe)
        os.unlink(probe)
    except OSError:
        remove_folder(folder)
        raise
    return folder


class Peer:
    """One connected process (rank_exec or rsh): messages are JSON objects, one a line, but for what a rank starts with."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.data = b""

    def send(self, message: Mapping[str, object]) -> None:
        """Sends a message. A peer that has gone is no error here: its end is noticed."""
        self._send(json.dumps(message).encode() + b"\n")

    def send_order(
        self, argv: Sequence[str], cwd: str, env: Mapping[str, str], keep: Sequence[str], fds: Sequence[int]
    ) -> None:
        """Tells rank_exec what to start, with the descriptors of the rank's output and errors."""
        order = marshal.dumps((list(argv), cwd, dict(env), list(keep)), MARSHAL)
        self._send(b"%d\n" % len(order) + order, fds)

    def _send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):
            self._channel.settimeout(SEND_TIMEOUT_S)
            sent = socket.send_fds(self._channel, [data], list(fds)) if fds else 0
            self._channel.sendall(data[sent:])
        with contextlib.suppress(OSError):
            self._channel.setblocking(False)

    def fileno(self) -> int:
        return self._channel.fileno()

    def receive(self) -> bytes:
        return self._channel.recv(65536)

    def close(self) -> None:
        self._channel.close()


class RankPort:
    """Listens in a folder of its own (mode 0700). `on_message(peer, message)`; None is the end of a peer.

    `longest`: characters of the folder in which its own folder may be, before it is made below /tmp.
    """

    def __init__(
        self,
        loop: Loop,
        on_raised: Callable[[Raised | NonFiniteValue], None],
        on_message: Callable[[Peer, Fields | None], None],
        longest: int = LONGEST_TEMPORARY,
    ) -> None:
        self._loop, self._on_raised, self._on_message = loop, on_raised, on_message
        self.folder = run_folder(os.environ.get("TMPDIR", ""), longest)
        self._peers: set[Peer] = set()
        self._raised = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._raised.bind(os.path.join(self.folder, "raised"))
        self._raised.setblocking(False)
        self._ranks = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ranks.bind(os.path.join(self.folder, "ranks"))
        self._ranks.listen(1024)
        self._ranks.setblocking(False)
        loop.watch(self._raised, READ, self._read_raised)
        loop.watch(self._ranks, READ, self._accept)

    def drain(self) -> None:
        """Reads the exceptions that have arrived: a rank's exception arrives before its end."""
        self._read_raised(READ)

    def close(self) -> None:
        """Closes everything and removes the folder."""
        for listener in (self._raised, self._ranks):
            self._loop.forget(listener)
            listener.close()
        for peer in self._peers:
            self._loop.forget(peer)
            peer.close()
        self._peers.clear()
        remove_folder(self.folder)

    def _read_raised(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                data = self._raised.recv(256 * 1024)
                raised = parse_raised(data) or parse_non_finite(data)
                if raised is not None:
                    self._on_raised(raised)

    def _accept(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                channel, _address = self._ranks.accept()
                channel.setblocking(False)
                peer = Peer(channel)
                self._peers.add(peer)
                self._loop.watch(peer, READ, functools.partial(self._read, peer))

    def _read(self, peer: Peer, _: int) -> None:
        try:
            data = peer.receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        peer.data += data
        *lines, peer.data = peer.data.split(b"\n")
        for line in lines:
            message = parse_message(line)
            if message is None:
                data = b""  # not one of ours
                break
            self._on_message(peer, message)
        if not data or len(peer.data) > LARGEST:
            self._end(peer)

    def _end(self, peer: Peer) -> None:
        if peer in self._peers:
            self._peers.discard(peer)
            self._loop.forget(peer)
            peer.close()
            self._on_message(peer, None)
