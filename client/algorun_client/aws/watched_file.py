"""A file on its way to S3: it is hashed while it is read, and reading ends when the upload is interrupted."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path

from algorun_client.common.errors import Changed


class WatchedFile(io.RawIOBase):
    """Reads a file once, in order. Raises Changed in place of its last bytes if they do not make `sha256`.

    So an upload in parts is never completed with a content that it should not have. `check` is called before each read
    and ends it by an exception.
    """

    def __init__(self, path: Path, sha256: str, check: Callable[[], None]) -> None:
        self._path, self._sha256, self._check = path, sha256, check
        self._file = open(path, "rb")  # noqa: SIM115 (closed by close)
        self._size = os.fstat(self._file.fileno()).st_size
        self._digest, self._hashed = hashlib.sha256(), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        """As that of a file."""
        self._check()
        if self._file.tell() != self._hashed:
            raise OSError(f"{self._path} is read out of order")
        content = self._file.read(size)
        self._digest.update(content)
        self._hashed += len(content)
        # A short answer is the end, also of a file that was longer at the beginning.
        at_end = not 0 <= size <= len(content) or not content or self._hashed >= self._size
        if at_end and self._sha256 and self._digest.hexdigest() != self._sha256:
            raise Changed(str(self._path))
        return content

    def close(self) -> None:
        self._file.close()
        super().close()


class WatchedBytes(io.BytesIO):
    """Bytes whose reading ends when the upload is interrupted."""

    def __init__(self, content: bytes, check: Callable[[], None]) -> None:
        super().__init__(content)
        self._check = check

    def read(self, size: int | None = -1) -> bytes:
        """As that of a file."""
        self._check()
        return super().read(size)
