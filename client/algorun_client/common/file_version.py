"""Tells whether a file was written, or another one put in its place, without reading it."""

from __future__ import annotations

import os
from typing import NamedTuple, Self


class FileVersion(NamedTuple):
    """What each write to a file changes."""

    device: int
    inode: int  # another file has another one, also if it got the old one's time
    size: int  # bytes
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        """From `os.stat`, which follows links."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
