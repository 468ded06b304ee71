"""Checks the members of an untrusted archive: none of them may leave the folder into which it is unpacked.

Python before 3.11.4 (Debian 12 has 3.11.2) has no extraction filters, so this module checks every member.
"""

from __future__ import annotations

import itertools
import lzma
import os
import posixpath
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

from .errors import UserError

CHUNK = 1024 * 1024
DAMAGE = (
    *(tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error, lzma.LZMAError),
    *(IndexError, MemoryError, RecursionError),  # tarfile raises these on headers that contradict themselves
    *(zipfile.BadZipFile, NotImplementedError, struct.error),  # zipfile: damage, unknown compression, odd extra fields
)
EXTENDED = (b"L", b"K", b"x", b"g", b"X")  # types of headers with the long name or the attributes of the next member
LONGEST_HEADER = 64 * 1024  # bytes of such a header; Linux's longest path has 4 KiB
# Members have been checked here, so Python's own filter, where it exists, need not check them again.
# Any: mypy would hold a precise value against every keyword argument of extractall().
TRUSTED: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}


class ArchiveMember(tarfile.TarInfo):
    """A member with checked headers. tarfile alone would take a broken header for the archive's end, and would read a
    header of any size into memory."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> ArchiveMember:
        try:
            return super().fromtarfile(tarfile_)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from None

    def _proc_member(self, tarfile_: tarfile.TarFile) -> Any:  # tarfile's hook for subclasses; it declares no type
        if self.type in EXTENDED and self.size > LONGEST_HEADER:
            raise tarfile.ReadError(f"an extended header of {self.size} bytes")
        return super()._proc_member(tarfile_)  # type: ignore[misc]


class Checker:
    """Checks the members of one archive, in their order. `where` names the archive in errors, `place` the folder.

    `leave_out`, if it is given, gets what is wrong with a member that cannot be unpacked; the others still are. `home`: where
    the folder was when it was packed; a link to a path in it counts as one inside the archive.
    """

    def __init__(
        self,
        where: str,
        place: str,
        most: int,
        fix: str,
        *,
        leave_out: Callable[[str], object] | None = None,
        home: str = "",
    ) -> None:
        self._where, self._place, self._most, self._fix = where, place, most, fix
        self._leave_out, self._home = leave_out, home
        self._links: set[str] = set()
        self._files: set[str] = set()
        self._count = 0

    def admits(self, member: tarfile.TarInfo) -> bool:
        """Gives the member its checked name, a safe mode and this process's owner. False: there is nothing to unpack.

        Raises UserError if the member would leave the folder, or is no file, folder or link.
        """
        self._count += 1
        if self._count > self._most:
            raise UserError(self._where, f"has more than {self._most} members", fix=self._fix)
        try:
            return self._admits(member)
        except UserError as error:
            if self._leave_out is None:
                raise
            self._leave_out(error.what)
            return False

    def _admits(self, member: tarfile.TarInfo) -> bool:
        name = posixpath.normpath(member.name)
        if name == ".":
            return False
        shown = f"member {member.name!r}"
        if _outside(member.name) or "\0" in member.name:
            raise UserError(self._where, f"{shown} lies outside {self._place}", fix="pack relative paths")
        parents = name.split("/")[:-1]
        if any("/".join(parents[: depth + 1]) in self._links for depth in range(len(parents))):
            raise UserError(self._where, f"{shown} lies behind a link", fix="pack the files themselves")
        if name in self._links:  # a later member of the same name would be written through the link
            raise UserError(self._where, f"{shown} comes twice, first as a link", fix="pack it once")
        self._admit_kind(member, name)
        member.name = name  # the checked, normalised name: the kernel would follow the link in `link/..`
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        return True

    def _admit_kind(self, member: tarfile.TarInfo, name: str) -> None:
        if member.issym():
            if self._home and member.linkname.startswith(f"{self._home}/"):
                inside = member.linkname.removeprefix(f"{self._home}/")
                member.linkname = posixpath.relpath(inside, posixpath.dirname(name) or ".")
            target = posixpath.join(posixpath.dirname(name), member.linkname)
            if member.linkname.startswith("/") or _outside(target) or _turns_back(member.linkname):
                what = f"link {member.name!r} leads out of {self._place} to {member.linkname!r}"
                raise UserError(self._where, what, fix="remove it")
            self._links.add(name)
            self._files.discard(name)
        elif member.islnk():
            member.linkname = posixpath.normpath(member.linkname)
            if member.linkname not in self._files:
                what = f"hard link {member.name!r} leads to {member.linkname!r}, which is not an earlier file of the archive"
                raise UserError(self._where, what, fix="pack the file itself")
        elif not (member.isreg() or member.isdir()):
            what = f"member {member.name!r} is a device, a pipe or the like"
            raise UserError(self._where, what, allowed="files, folders and links")
        else:
            self._files.add(name)


def _outside(name: str) -> bool:
    """True for a path that is absolute or climbs out of the folder."""
    depth = 0
    for part in name.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return True
    return name.startswith("/")


def _turns_back(target: str) -> bool:
    """True if `..` comes after a name. That name may be a link, so the target cannot be checked from the text."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    return ".." in itertools.dropwhile(lambda part: part == "..", parts)
