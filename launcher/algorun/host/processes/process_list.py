"""What processes wait for, as text: for the failure of an engine that does not start its ranks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from .owner import Stat

MOST = 40  # processes
LONGEST = 120  # characters of a command: rsh's has the host's name within them
SIGNALS = {"SigBlk": "blocked", "SigPnd": "pending", "ShdPnd": "pending"}  # masks in /proc/PID/status


def process_list(found: Sequence[Stat], public: Callable[[str], str]) -> str:
    """A line for each process: pid, parent, state, where it waits in the kernel, seconds of CPU, signals, command.

    `public` takes the job's secrets out of a command.
    """
    more = [f"and {len(found) - MOST} more"] if len(found) > MOST else []
    return "\n".join([*(_line(each, public) for each in found[:MOST]), *more])


def _line(stat: Stat, public: Callable[[str], str]) -> str:
    place = _read(stat.pid, "wchan")
    state = f"{stat.state} in {place}" if place not in ("", "0") else stat.state
    words = [f"pid {stat.pid} of {stat.parent}", state, *_cpu(stat.pid), *_signals(stat.pid)]
    command = " ".join(_read(stat.pid, "cmdline").replace("\0", " ").split()) or f"[{stat.name}]"
    return f"{', '.join(words)}: {public(command)[:LONGEST]}"


def _cpu(pid: int) -> list[str]:
    fields = _read(pid, "stat").rpartition(")")[2].split()
    with contextlib.suppress(ValueError, IndexError):
        return [f"{(int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK'):.1f} s of CPU"]
    return []


def _signals(pid: int) -> list[str]:
    """Signals that are blocked or pending, as masks; mostly there are none."""
    pairs = (line.split(":\t", 1) for line in _read(pid, "status").splitlines() if ":\t" in line)
    return [f"{SIGNALS[name]} {mask.lstrip('0')}" for name, mask in pairs if name in SIGNALS and mask.strip("0")]


def _read(pid: int, name: str) -> str:
    """A file of /proc/PID, "" if the process has ended or is another user's."""
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
