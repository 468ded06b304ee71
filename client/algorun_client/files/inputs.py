"""Local data for a job: each file with the hash by which an unchanged one is known."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from algorun.common.errors import UserError
from algorun_client.common import at_once

from .scan import FileScan, FoundFile

MOST_THREADS = 8  # hashlib works without the interpreter's lock


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file of data."""

    name: str  # relative to its folder, with `/`
    path: Path
    size: int  # bytes
    sha256: str  # hexadecimal


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


def hashed(found: FileScan, where: str) -> tuple[HashedFile, ...]:
    """The files with their hashes, in their order. Raises UserError if one cannot be read."""
    stopped = threading.Event()
    threads = min(MOST_THREADS, os.cpu_count() or 1)
    try:
        return tuple(at_once.each(lambda file: _hash(file, where, stopped), found.files, threads))
    finally:
        stopped.set()  # Ctrl-C: nobody needs the rest of large files


def _hash(file: FoundFile, where: str, stopped: threading.Event) -> HashedFile:
    try:
        with open(file.path, "rb") as content:
            before = FileVersion.of(os.fstat(content.fileno()))
            digest = hashlib.file_digest(_Reader(content, stopped), "sha256").hexdigest()
            after = FileVersion.of(os.fstat(content.fileno()))
    except OSError as error:
        raise UserError(where, f"{file.path}: {error.strerror}", fix="make it readable") from None
    if before != after:
        raise UserError(where, f"{file.path} changes while it is read", fix="submit again when it is complete")
    return HashedFile(file.name, file.path, after.size, digest)


class _Reader(io.RawIOBase):
    """Reads a file until the hash is not needed any more."""

    def __init__(self, file: IO[bytes], stopped: threading.Event) -> None:
        self._file, self._stopped = file, stopped

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # a WriteableBuffer of typeshed, which no module of Python has before 3.12
        if self._stopped.is_set():
            raise CancelledError
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)
