"""Atomic writes: a file appears complete or not at all. Each is written under another name, flushed to disk and renamed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from .errors import UserError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class HashingFile(io.RawIOBase):
    """A writable file that passes its bytes to `file` and counts them: `sha256` (hex) and `size` (bytes)."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        self._hash.update(data)
        self.size += len(memoryview(data).cast("B"))
        return self._file.write(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


@contextlib.contextmanager
def aside(made: Path, path: Callable[[], Path]) -> Iterator[BinaryIO]:
    """A new file `made` to be written. At the end it is flushed to disk, and becomes `path()`, in the same folder. After an
    error it is removed. Raises OSError."""
    try:
        with made.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        target = path()
        made.replace(target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def write(path: Path, fill: Callable[[BinaryIO], object], writer: str = "") -> HashingFile:
    """Creates or replaces `path`: `fill` writes the content into an open file. Returns the file's hash and size.

    Of several writers at once each needs a name of its own, `writer`; by default it is the number of the process.
    If anything fails, the temporary file `.NAME.WRITER.tmp` beside `path` is removed. Raises OSError, and every error of
    `fill`.
    """
    with aside(path.with_name(f".{path.name}.{writer or os.getpid()}.tmp"), lambda: path) as file:
        hashing = HashingFile(file)
        fill(cast(BinaryIO, hashing))  # it has all methods of BinaryIO; typeshed does not count a RawIOBase as one
    return hashing


def write_text(path: Path, text: str) -> None:
    """Creates or replaces the text file `path`, in UTF-8. Raises OSError."""
    write(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: object) -> None:
    """Creates or replaces the JSON file `path`. Raises OSError, and TypeError if JSON cannot express `value`."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def sync_folder(folder: Path) -> None:
    """Flushes the names in `folder` to disk. Without it a rename may be lost when the machine fails. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def writable(folder: Path, what: str, fix: str) -> None:
    """Creates `folder` with its parents, and checks that a file can be written there.

    Raises:
        UserError: if either fails. In its text `what` names the option that gave the folder, `fix` says what to give.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{what} {folder} cannot be written: {error.strerror}; fix: {fix}") from None
