"""Unpacks an untrusted zip file member by member, each checked as a member of a tar file is."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

from algorun.common.archive_members import CHUNK, Checker

Raw: TypeAlias = IO[bytes]
ENCRYPTED = 0x1  # bit of a member's flags
KINDS = {0: tarfile.REGTYPE, stat.S_IFREG: tarfile.REGTYPE, stat.S_IFDIR: tarfile.DIRTYPE}


def unpack(raw: Raw, stage: Path, checker: Checker, fits: Callable[[tarfile.TarInfo], None]) -> None:
    """Unpacks all members into the folder `stage`. Raises UserError on a forbidden one, an exception of DAMAGE on a
    damaged file, OSError."""
    with zipfile.ZipFile(raw) as packed:
        for info in packed.infolist():
            if info.flag_bits & ENCRYPTED:
                raise zipfile.BadZipFile(f"member {info.filename!r} is encrypted")
            member = _member(info)
            if member.ischr():
                raise zipfile.BadZipFile(f"member {info.filename!r} is no file and no folder, but a link or the like")
            if not checker.admits(member):
                continue
            fits(member)
            target = stage / member.name
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with packed.open(info) as source, open(target, "wb") as out:
                shutil.copyfileobj(source, out, CHUNK)
            os.chmod(target, member.mode)


def _member(info: zipfile.ZipInfo) -> tarfile.TarInfo:
    """The same member as a tar file has it. A link becomes a device: what zip files keep of a link is a file's text."""
    member = tarfile.TarInfo(info.filename)
    mode = info.external_attr >> 16  # of a zip file that was made on a Unix system; else 0
    member.type = tarfile.DIRTYPE if info.is_dir() else KINDS.get(stat.S_IFMT(mode), tarfile.CHRTYPE)
    member.size, member.mode = info.file_size, mode & 0o777
    return member
