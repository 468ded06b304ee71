"""Unpacks an untrusted zip file member by member, each checked as a member of a tar file is."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

from algorun.common.archive_members import CHUNK, Checker

Raw: TypeAlias = IO[bytes]
ENCRYPTED, IS_UTF8 = 0x1, 0x800  # bits of a member's flags
WINDOWS = (0, 10)  # `create_system` of programs there
FIELD, UNICODE_HEAD = (
    struct.Struct("<HH"),
    struct.Struct("<BI"),
)  # of an extra field: number and size; version and CRC-32
UNICODE_PATH = 0x7075
OTHER_CODE = "cp437"  # zip's own code page, for names that are not marked as UTF-8
KINDS = {0: tarfile.REGTYPE, stat.S_IFREG: tarfile.REGTYPE, stat.S_IFDIR: tarfile.DIRTYPE}


class MemberRefusedError(zipfile.BadZipFile):
    """A member that is not unpacked, with what helps."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


def unpack(raw: Raw, stage: Path, checker: Checker, fits: Callable[[tarfile.TarInfo], None]) -> str:
    """Unpacks all members into the folder `stage`. Returns a notice for the user, "" without one. Raises UserError on a
    forbidden member, an exception of DAMAGE on a damaged file, OSError."""
    with zipfile.ZipFile(raw) as packed:
        for info in packed.infolist():
            if info.flag_bits & ENCRYPTED:
                raise MemberRefusedError(f"member {info.filename!r} is encrypted", "pack it without a password")
            member = _member(info)
            if member.ischr():
                what = f"member {info.filename!r} is no file and no folder, but a link or the like"
                raise MemberRefusedError(what, "pack the files themselves (zip without -y), or a tar file")
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
        names = [_name(info) for info in packed.infolist()]
        return _notice([name for name, is_known in names if not is_known])


def _name(info: zipfile.ZipInfo) -> tuple[str, bool]:
    """The member's name with `/` between folders, and False if nobody knows in which code it was written.

    macOS and Info-ZIP write UTF-8 without the mark for it; WinZip writes it into a field of its own; old .NET programs on Windows
    write `\\` between folders.
    """
    name, is_known = info.filename, bool(info.flag_bits & IS_UTF8) or info.filename.isascii()
    if not is_known and (unicode_path := _unicode_path(info)):
        name, is_known = unicode_path, True
    if not is_known:
        with contextlib.suppress(UnicodeError):
            name, is_known = name.encode(OTHER_CODE).decode("utf-8"), True
    if info.create_system in WINDOWS and "/" not in name:
        name = name.replace("\\", "/")
    return name, is_known


def _unicode_path(info: zipfile.ZipInfo) -> str:
    """The name in the field "Info-ZIP Unicode Path", "" without one, or if somebody has renamed the member since.

    Python's zipfile reads it from 3.12 on. Source: APPNOTE.TXT of PKWARE, 4.6.9.
    """
    extra = info.extra
    while len(extra) >= FIELD.size:
        kind, size = FIELD.unpack_from(extra)
        content, extra = extra[FIELD.size : FIELD.size + size], extra[FIELD.size + size :]
        if kind != UNICODE_PATH or len(content) < UNICODE_HEAD.size:
            continue
        version, crc = UNICODE_HEAD.unpack_from(content)
        if version == 1 and crc == zlib.crc32(info.orig_filename.encode(OTHER_CODE)):
            with contextlib.suppress(UnicodeError):
                return content[UNICODE_HEAD.size :].decode("utf-8")
    return ""


def _notice(doubtful: list[str]) -> str:
    if not doubtful:
        return ""
    return (
        f"names that are not UTF-8 are read as code page 437: {len(doubtful)}, such as {doubtful[0]!r}; "
        "fix: if names or classes look wrong, pack the files on a system with UTF-8 names, or as a tar file"
    )


def _member(info: zipfile.ZipInfo) -> tarfile.TarInfo:
    """The same member as a tar file has it. A link becomes a device: what zip files keep of a link is a file's text."""
    member = tarfile.TarInfo(_name(info)[0])
    mode = info.external_attr >> 16  # of a zip file that was made on a Unix system; else 0
    is_folder = member.name.endswith("/")
    member.type = tarfile.DIRTYPE if is_folder else KINDS.get(stat.S_IFMT(mode), tarfile.CHRTYPE)
    member.size, member.mode = info.file_size, mode & 0o777
    return member
