"""Unpacks a source archive from outside: whole or not at all, and nothing outside the folder.

Python 3.11 before 3.11.4 (Debian 12's among them) has no extraction filters, so every member is checked here.
"""

from __future__ import annotations

import contextlib
import itertools
import lzma
import os
import posixpath
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from algorun.errors import UserError
from algorun.job.usercode import STAGE

CHUNK = 1024 * 1024
DAMAGE = (
    *(tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error, lzma.LZMAError),
    *(IndexError, MemoryError, RecursionError),  # tarfile's own, about headers that contradict themselves
)
MOST_MEMBERS = 1_000_000
EXTENDED = (b"L", b"K", b"x", b"g", b"X")  # types of headers that say more about the next member
LONGEST_HEADER = 64 * 1024  # bytes of a name or of attributes before a member; Linux's longest path has 4 KiB
# Where Python has filters of its own, ours have checked already.
TRUSTED: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}


class Member(tarfile.TarInfo):
    """A member whose headers are held to their bounds; tarfile would take them for the archive's end, or any memory."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Member:
        try:
            return super().fromtarfile(tarfile_)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from None

    def _proc_member(self, tarfile_: tarfile.TarFile) -> Any:  # the entry point that tarfile offers to subclasses
        if self.type in EXTENDED and self.size > LONGEST_HEADER:
            raise tarfile.ReadError(f"an extended header of {self.size} bytes")
        return super()._proc_member(tarfile_)  # type: ignore[misc]


def unpack(archive: Path, folder: Path, where: str) -> None:
    """Unpacks a tar file (plain, gzip, bzip2 or xz) into an empty folder. Raises UserError; then nothing is left."""
    try:
        with tarfile.open(archive, tarinfo=Member) as tar, staged(folder) as stage:
            members = _read(tar, where)
            need, free = sum(m.size for m in members if m.isreg()), shutil.disk_usage(folder).free
            if need > free:
                raise UserError(where, f"holds {need} bytes, {folder} has room for {free}", fix="use a larger volume")
            tar.extractall(stage, members, **TRUSTED)
    except DAMAGE as error:
        raise UserError(where, damaged(error), allowed="tar, tar.gz, tar.bz2, tar.xz") from None
    except OSError as error:
        raise UserError(where, f"cannot be unpacked: {error.strerror or error}") from None


def is_tar(archive: Path) -> bool:
    """True for what begins as a tar file. Raises one of DAMAGE where that cannot be told, OSError as `open` does."""
    try:
        with tarfile.open(archive, tarinfo=Member):
            return True
    except tarfile.TarError:
        return False


def damaged(error: Exception) -> str:
    """What is wrong with an archive, of an error that may not say much."""
    return f"is not a usable tar file: {error or type(error).__name__}"


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder within `folder` to make files in. At the end they move into `folder`; after an error none is left."""
    stage = folder / f"{STAGE}-{os.getpid()}"
    for left in folder.glob(f"{STAGE}-*"):  # by a preparation that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        stage.mkdir()
        yield stage
        for item in sorted(os.listdir(stage)):
            os.rename(stage / item, folder / item)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _read(tar: tarfile.TarFile, where: str) -> list[tarfile.TarInfo]:
    """All members, after the whole file has been read once: what is compressed ends with a checksum."""
    try:
        members = _checked(tar, where)
        while tar.fileobj is not None and tar.fileobj.read(CHUNK):
            pass
    except OSError as error:  # gzip's word for damaged data, and the kernel's for a member of 2^60 bytes
        raise tarfile.ReadError(str(error.strerror or error)) from None
    return members


def _checked(tar: tarfile.TarFile, where: str) -> list[tarfile.TarInfo]:
    """All members, each inside the folder and made harmless; a hostile one refuses the whole archive."""
    members: list[tarfile.TarInfo] = []
    links: set[str] = set()
    files: set[str] = set()
    for member in tar:
        if len(members) >= MOST_MEMBERS:
            raise UserError(where, f"has more than {MOST_MEMBERS} members")
        name = posixpath.normpath(member.name)
        if name == ".":
            continue
        if _outside(member.name) or "\0" in member.name:
            raise UserError(where, f"member {member.name!r} lies outside the code folder", fix="pack relative paths")
        parents = name.split("/")[:-1]
        if any("/".join(parents[: depth + 1]) in links for depth in range(len(parents))):
            raise UserError(where, f"member {member.name!r} lies behind a link", fix="pack the files themselves")
        if name in links:  # a later member of the same name would be written through the link
            raise UserError(where, f"member {member.name!r} comes twice, first as a link")
        if member.issym():
            target = posixpath.join(posixpath.dirname(name), member.linkname)
            if member.linkname.startswith("/") or _outside(target) or _turns_back(member.linkname):
                raise UserError(
                    where, f"link {member.name!r} leads out of the code folder to {member.linkname!r}", fix="remove it"
                )
            links.add(name)
            files.discard(name)
        elif member.islnk():
            member.linkname = posixpath.normpath(member.linkname)
            if member.linkname not in files:
                raise UserError(where, f"link {member.name!r} leads to {member.linkname!r}, which is no file before it")
        elif not (member.isreg() or member.isdir()):
            raise UserError(where, f"member {member.name!r} is neither a file nor a folder nor a link")
        else:
            files.add(name)
        member.name = name  # as it was checked: to the kernel, `link/..` is where the link leads
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        members.append(member)
    return members


def _outside(name: str) -> bool:
    """True for a path that is absolute or climbs out of the folder."""
    depth = 0
    for part in name.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return True
    return name.startswith("/")


def _turns_back(target: str) -> bool:
    """True where `..` follows a name, which may be a link: only the kernel knows where that leads."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    return ".." in itertools.dropwhile(lambda part: part == "..", parts)
