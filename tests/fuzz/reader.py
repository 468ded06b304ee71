"""What is fuzzed: a reader of outside bytes, with honest inputs to start from and the errors that it may answer with."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

REGRESSIONS = Path(__file__).parent / "regressions"
LONGEST_SEED = 8 * 1024  # bytes: what is long is slow, and says no more
PART = b"\x1e"  # ASCII's record separator: between the parts of an input that stands for several files or writes


@dataclass(frozen=True)
class Reader:
    """`read` takes any bytes. It returns where they were taken or refused cleanly; whatever it raises is a fault.

    `quick` is the number of mutated inputs in the slice that every test run includes.
    """

    name: str
    read: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    mutate: Callable[[bytes, Random], bytes]
    quick: int = 400

    def regressions(self) -> list[Path]:
        """Inputs that were faults once."""
        return sorted((REGRESSIONS / self.name).glob("*"))

    def start(self) -> list[bytes]:
        """The inputs that mutation begins with."""
        honest = [data for data in self.seeds() if len(data) <= LONGEST_SEED]
        return [*honest, *(path.read_bytes() for path in self.regressions())]


def memory() -> str | None:
    """A folder whose files are in memory, None where there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@functools.cache
def scratch() -> Path:
    """A folder of this process, in memory where that is possible."""
    folder = Path(tempfile.mkdtemp(prefix="algorun-fuzz-", dir=os.environ.get("TMPDIR") or memory()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def parts(data: bytes, count: int) -> list[bytes]:
    """Exactly `count` parts; missing ones are empty."""
    found = data.split(PART, count - 1)
    return found + [b""] * (count - len(found))
