"""Writes that matter go aside and are renamed: a reader sees the old file or the new one, never half of one."""

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from .errors import UserError


class HashingFile(io.RawIOBase):
    """Passes writes on to `file` and keeps their sha256 and size, so that a checkpoint is not read again for it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def write(path: Path, fill: Callable[[HashingFile], object]) -> HashingFile:
    """`fill` writes the content of `path`, which appears complete and on disk; returns its hash and size."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            hashing = HashingFile(file)
            fill(hashing)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return hashing


def write_text(path: Path, text: str) -> None:
    write(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def sync_folder(folder: Path) -> None:
    """A rename is on disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def writable(folder: Path, what: str, fix: str) -> None:
    """Makes `folder`. UserError where that fails or it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{what} {folder} cannot be written: {error.strerror}; fix: {fix}") from None
