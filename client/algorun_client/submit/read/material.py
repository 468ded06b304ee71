"""What was read from this machine for a request: the packed code, and the files of local inputs. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from algorun_client.files.archive import Archive
from algorun_client.files.inputs import HashedFile

from .program import Started

FINGERPRINT = 32  # hexadecimal digits: 128 bits


def fingerprint(files: Sequence[HashedFile]) -> str:
    """Names a folder by its content: the names of its files and what they hold."""
    digest = hashlib.sha256()
    for each in sorted(files, key=lambda file: file.name):
        digest.update(f"{each.sha256}{each.name}\0".encode())
    return digest.hexdigest()[:FINGERPRINT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Everything that was read from this machine."""

    started: Started
    code: Archive | None = None
    inputs: Mapping[str, Sequence[HashedFile]] = field(default_factory=dict)  # by name of the input
    commit: str = ""  # of the code, for the job's page; "" if its folder is no clone
    notices: tuple[str, ...] = ()  # for the user: files left out
