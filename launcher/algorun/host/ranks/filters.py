"""Filters of shell scripts, such as `exec > >(sed s/a/b/ | tee log)`: they hold the last lines of a rank that has ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import termios
from collections.abc import Iterable

from algorun.host.processes.owner import Stat, is_shell, processes

from .stop_look import pipe_of, read_pipes

READS_S = 1.5  # one that has read nothing for so long is at work on something else, or is no filter


class Filters:
    """The filters of a host's ranks, looked at again and again."""

    def __init__(self) -> None:
        self._unread = 0
        self._changed_at = 0.0

    def at_work(self, now: float, pids: Iterable[int], ends: Iterable[int]) -> bool:
        """True while filters in the sessions of these ranks go on reading. `ends`: where the ranks' output is read. A
        `tail -f log | grep loss &` that waits for lines is not at work."""
        unread = _unread(pids, ends)
        if unread != self._unread:
            self._unread, self._changed_at = unread, now
        return unread > 0 and now - self._changed_at < READS_S


def _unread(pids: Iterable[int], ends: Iterable[int]) -> int:
    """The bytes that filters have not read yet, and one for each whose input has ended."""
    own, sessions = {f"pipe:[{os.fstat(end).st_ino}]" for end in ends}, set(pids)
    # Not `alive_in`: a script may have ended before this process adopted orphans. Who writes to our pipes is ours all the same.
    here = [each for each in processes() if each.session in sessions and not each.ended]
    inputs = {each.pid: _inputs(each) for each in here}
    outputs = {pid: {pipe_of(pid, 1), pipe_of(pid, 2)} for pid, found in inputs.items() if found}
    reached, before = set(own), 0
    while len(reached) > before:  # a chain of filters, from its end
        before = len(reached)
        for pid, written in outputs.items():
            if not reached.isdisjoint(written):
                reached |= inputs[pid].keys()
    places = {pipe: (pid, found[pipe]) for pid, found in inputs.items() for pipe in found if pipe in reached - own}
    return sum(_waiting(*place) for place in places.values())


def _inputs(process: Stat) -> dict[str, int]:
    """The pipe that a process reads, and its descriptor; of a shell that has just begun, all that may become its input."""
    source = pipe_of(process.pid, 0)
    if source:
        return {source: 0}
    return read_pipes(process.pid) if is_shell(process) else {}


def _waiting(pid: int, descriptor: int) -> int:
    """The bytes in a pipe that the process reads, and one if nobody writes to it any more."""
    with contextlib.suppress(OSError):  # it has ended, or it is another user's
        opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK)
        try:
            (count,) = struct.unpack("i", fcntl.ioctl(opened, termios.FIONREAD, b"\0" * 4))
            looks = select.poll()
            looks.register(opened, 0)
            return int(count) + bool(looks.poll(0))
        finally:
            os.close(opened)
    return 0
