"""What Ray prints: lines of workers get their host's name; and its log files, which are kept after a failure."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

# A driver prints the lines of workers elsewhere as `(f pid=12, ip=10.0.0.2) text`, with colours around the bracket.
WORKER = re.compile(rb"^(?:\x1b\[\d+m)?(\([^()\n]*\bpid=\d+), ip=([\d.]+)\)(?:\x1b\[0m)?", re.MULTILINE)
REPEATED = re.compile(rb"\x1b\[\d+m( \[repeated \d+x across cluster\][^\x1b\n]*)\x1b\[0m")
KEPT = (".out", ".err", ".log")
DRIVER = "session_2*/logs/python-core-driver-*"  # Ray's log of each driver that connects on this host
NOT_CONNECTED = (
    "the driver has not connected to the job's Ray cluster, which did nothing; fix: ray.init() without an address"
)
MOST_FILES = 100  # the newest
MOST_BYTES = 256 * 1024  # the end of each


def with_hosts(hosts: Mapping[str, str]) -> Callable[[bytes], bytes]:
    """A function that puts host names in place of addresses at the beginning of workers' lines."""
    names = {address.encode(): host.encode() for address, host in hosts.items()}

    def clean(lines: bytes) -> bytes:
        if b"pid=" in lines:
            lines = WORKER.sub(lambda found: found[1] + b", " + names.get(found[2], found[2]) + b")", lines)
        return REPEATED.sub(rb"\1", lines) if b"[repeated " in lines else lines

    return clean


def driver_connected(session: Path) -> bool:
    """True if a driver on this host has connected to the cluster of this session."""
    return next(session.glob(DRIVER), None) is not None


def kept_in(host: str, attempt: int) -> str:
    """The name of the folder for Ray's log files of a host."""
    return f"ray-{host}-attempt-{attempt + 1}"


def keep(session: Path, into: Path) -> None:
    """Copies the ends of Ray's log files of this host. A full disk must not change how the job ends."""
    with contextlib.suppress(OSError):
        files = [each for each in session.glob("session_2*/logs/*") if each.suffix in KEPT and each.is_file()]
        newest = sorted((each for each in files if each.stat().st_size), key=lambda each: -each.stat().st_mtime)
        for each in newest[:MOST_FILES]:
            into.mkdir(parents=True, exist_ok=True)
            with open(each, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_BYTES))
                (into / each.name).write_bytes(file.read(MOST_BYTES))
