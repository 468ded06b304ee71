"""Files that a reader finds complete or not at all: each is written under another name, synced to disk and renamed."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from .errors import UserError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class HashingFile(io.RawIOBase):
    """Passes what is written on to `file`. `sha256` (hex) and `size` (bytes) are known without reading it again."""

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


def write(path: Path, fill: Callable[[BinaryIO], object]) -> HashingFile:
    """Makes or replaces `path` with what `fill` writes into the open file. Returns its hash and size.

    The file `.NAME.PID.tmp` beside it is removed where anything fails. Raises OSError, and what `fill` raises.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            hashing = HashingFile(file)
            fill(cast(BinaryIO, hashing))  # it has the methods; typeshed knows no RawIOBase as one
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return hashing


def write_text(path: Path, text: str) -> None:
    """Makes or replaces the text file `path`, in UTF-8. Raises OSError."""
    write(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: object) -> None:
    """Makes or replaces the JSON file `path`. Raises OSError, and TypeError where JSON has no form for `value`."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def sync_folder(folder: Path) -> None:
    """Writes the names in `folder` to disk: without it a rename may be lost when the machine fails. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def writable(folder: Path, what: str, fix: str) -> None:
    """Makes `folder`, with its parents, and tries to write to it.

    Raises:
        UserError: where either fails. `what` names the option that gave the folder, `fix` says what to give instead.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{what} {folder} cannot be written: {error.strerror}; fix: {fix}") from None
