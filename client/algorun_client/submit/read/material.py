"""What was read from this machine for a request: the packed code, and the files of local inputs. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .program import Started

FINGERPRINT = 32  # hexadecimal digits: 128 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeArchive:
    """The packed code. Either `data` or `path` holds it."""

    sha256: str
    size: int  # bytes
    data: bytes | None = None
    path: Path | None = None
    contents: Mapping[str, str] = field(default_factory=dict)  # by the user's file: a text that changes with it

    @property
    def file(self) -> str:
        """Its name in the bucket and on a host."""
        return f"{self.sha256}.tar.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A file of a local input."""

    name: str  # relative to the input
    path: Path
    size: int  # bytes
    sha256: str


def fingerprint(files: Sequence[LocalFile]) -> str:
    """Names a folder by its content: the names of its files and what they hold."""
    digest = hashlib.sha256()
    for each in sorted(files, key=lambda file: file.name):
        digest.update(f"{each.sha256}{each.name}\0".encode())
    return digest.hexdigest()[:FINGERPRINT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Everything that was read from this machine."""

    started: Started
    code: CodeArchive | None = None
    inputs: Mapping[str, Sequence[LocalFile]] = field(default_factory=dict)  # by name of the input
    commit: str = ""  # of the code, for the job's page; "" if its folder is no clone
    notices: tuple[str, ...] = ()  # for the user: files left out
