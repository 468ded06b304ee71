"""The code archive: the same files make the same bytes, so that code which has not changed is not uploaded again."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, cast

from algorun.common.errors import UserError

from . import secret_files
from .ignore_rules import ALGORUNIGNORE
from .scan import FoundFile

IN_MEMORY = 64 * 1024 * 1024  # bytes of files; a larger archive is written to a file
LEVEL = 6  # of gzip: level 9 takes twice the time for one percent


@dataclass(frozen=True, slots=True)
class Archive:
    """A tar.gz. Either `data` or `path` holds its content."""

    sha256: str  # of the content
    size: int  # bytes
    data: bytes | None = None
    path: Path | None = None
    # By the user's file: a text that changes with it. Files that were `added` are left out.
    contents: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Its name in the bucket and on a host."""
        return f"{self.sha256}.tar.gz"


def pack(files: Iterable[FoundFile], added: Mapping[str, bytes], folder: Path, where: str) -> Archive:
    """Packs files, and `added` files by their names in the archive. Times and owners are left out.

    A large archive is written into `folder`, which the caller removes. Raises UserError if a file cannot be read or
    holds an AWS key or a private key; `where` names the option.
    """
    files = sorted(files, key=lambda file: file.name)
    if sum(file.size for file in files) <= IN_MEMORY:
        buffer = io.BytesIO()
        contents = _write(buffer, files, added, where)
        content = buffer.getvalue()
        return Archive(hashlib.sha256(content).hexdigest(), len(content), data=content, contents=contents)
    path = folder / "code.tar.gz"
    with open(path, "wb") as out:
        contents = _write(out, files, added, where)
    with open(path, "rb") as again:
        digest = hashlib.file_digest(again, "sha256").hexdigest()
    return Archive(digest, path.stat().st_size, path=path, contents=contents)


def _write(out: BinaryIO, files: Iterable[FoundFile], added: Mapping[str, bytes], where: str) -> dict[str, str]:
    """Returns what each of the user's files is."""
    contents: dict[str, str] = {}
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=LEVEL, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in files:
            if file.name in added:
                continue
            contents[file.name] = _add(tar, file, where)
        for name, content in sorted(added.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(content))
    return contents


def _add(tar: tarfile.TarFile, file: FoundFile, where: str) -> str:
    """Returns what the file is: the SHA-256 of its content and whether it can be started, or where a link leads."""
    info = tarfile.TarInfo(file.name)
    if file.link:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, file.link, 0o777
        tar.addfile(info)
        return f"link to {file.link}"
    try:
        with open(file.path, "rb") as content:
            info.size, info.mode = content.seek(0, io.SEEK_END), 0o755 if file.executable else 0o644
            content.seek(0)
            watched = CheckedFile(content, file.name, where)
            tar.addfile(info, cast("IO[bytes]", watched))
            return f"{watched.digest.hexdigest()}{' executable' if file.executable else ''}"
    except OSError as error:
        why = error.strerror or "it changed while it was read"
        raise UserError(where, f"{file.name}: {why}", fix=f"make it readable, or name it in {ALGORUNIGNORE}") from None


class CheckedFile:
    """A file whose content is hashed, and searched for keys, while it is read."""

    def __init__(self, file: BinaryIO, name: str, where: str) -> None:
        self._file, self._name, self._where = file, name, where
        self._before = b""
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """As that of a file. Raises UserError on a key."""
        content = self._file.read(size)
        self.digest.update(content)
        window = self._before + content
        if kind := secret_files.in_text(window):
            raise UserError(
                self._where,
                f"{self._name} holds {kind}",
                fix=f"remove it from the file, or name the file in {ALGORUNIGNORE}; a job gets its rights from its role",
            )
        self._before = window[-secret_files.OVERLAP :]
        return content
