"""What a stop must know of the processes below this one, read from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import stat as stat_bits

from algorun.control.member.stop_order import Seen
from algorun.host.processes.owner import Stat, below, is_shell, processes


def look() -> list[Seen]:
    """All processes below this one that have not ended."""
    return [_seen(stat) for stat in below(processes()) if not stat.ended]


def _seen(stat: Stat) -> Seen:
    caught, ignored = _masks(stat.pid)
    handles = _has(caught, signal.SIGTERM)
    # The workers of torch's DataLoader handle these three in C, and no other fault (torch/csrc/DataLoader.cpp).
    faults = _has(caught, signal.SIGBUS) and _has(caught, signal.SIGSEGV) and not _has(caught, signal.SIGFPE)
    shell = is_shell(stat)
    return Seen(
        stat.pid,
        stat.parent,
        stat.born,
        handles=handles,
        ignores=_has(ignored, signal.SIGTERM),
        is_shell=shell,
        is_loader=handles and faults,
        reads=pipe_of(stat.pid, 0),
        writes=tuple(pipe for pipe in (pipe_of(stat.pid, 1), pipe_of(stat.pid, 2)) if pipe),
        holds=tuple(read_pipes(stat.pid)) if shell else (),
    )


def _masks(pid: int) -> tuple[int, int]:
    """The signals that the process handles, and those that it ignores."""
    found = {"SigCgt": 0, "SigIgn": 0}
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            name, _, mask = line.partition(":")
            if name in found:
                found[name] = int(mask, 16)
    return found["SigCgt"], found["SigIgn"]


def _has(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def read_pipes(pid: int) -> dict[str, int]:
    """The pipes that a process may read, but its standard input, and the descriptor of each."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                may_read = os.lstat(f"/proc/{pid}/fd/{name}").st_mode & stat_bits.S_IRUSR
                if may_read and int(name) > 2 and (pipe := pipe_of(pid, int(name))):
                    found[pipe] = int(name)
    return found


def pipe_of(pid: int, descriptor: int) -> str:
    """The pipe that a process has as this descriptor, as /proc names it (`pipe:[4026]`); "" for anything else."""
    with contextlib.suppress(OSError):
        target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        return target if target.startswith("pipe:") else ""
    return ""
