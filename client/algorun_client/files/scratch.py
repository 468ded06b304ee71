"""Folders for the time of a command. What a killed command has left, the next one removes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LOCK = ".lock"  # held while the command lives, and seen from containers that share the folder: a number of a process is not
NEW_S = 60.0  # a younger folder may not have its lock yet


@contextlib.contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """A new folder below the one for temporary files, removed at the end. Removes those of commands that have ended first."""
    _remove_left(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as name, open(Path(name) / LOCK, "wb") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: `_remove_left` gets none either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)


def _remove_left(prefix: str) -> None:
    """Never an error: at worst a folder stays."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                found = path.lstat()
                is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
                if is_own and time.time() - found.st_mtime > NEW_S:
                    _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    """Raises OSError if somebody holds the lock."""
    with open(path / LOCK, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
