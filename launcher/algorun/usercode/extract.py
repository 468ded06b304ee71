"""Unpacks the archives in the folder of a channel, each beside itself, before any rank starts.

An archive is unpacked completely or not at all, and never outside its own folder. A file in the channel's folder lists
what is done, so that a host that starts once more, or a simulated host that shares the folder, unpacks nothing twice.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from algorun.common import STAGE
from algorun.common.archive_members import CHUNK, DAMAGE, TRUSTED, ArchiveMember, Checker
from algorun.common.archives import damaged, staged
from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass, field
from algorun.common.sizes import size_text
from algorun.job.channels import Channel
from algorun.job.paths import write_aside

from . import zip_file
from .alone import alone
from .progress import SetupProgress

ZIP = ".zip"
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ZIP)
# Archives in other formats. A single compressed file, such as data.csv.gz, is data.
OTHERS = (".7z", ".rar", ".tar.zst", ".tzst", ".tar.lz4", ".tar.lz", ".tar.lzma", ".tar.z")
# How the content of a file begins, and what it is then.
BEGINNINGS = {
    b"PK\x03\x04": "zip", b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"7z\xbc\xaf": "7z",
    b"Rar!": "rar", b"<": "HTML or XML",
}  # fmt: skip
USTAR_AT = 257  # the byte from which on a tar file says what it is
DONE = ".algorun-extracted"  # the list of unpacked archives, in the channel's folder
LARGEST_LIST = 256 * 1024 * 1024  # bytes of that file: a million archives
MOST_MEMBERS = 10_000_000  # the names of as many members take about 1 GiB
LARGER_VOLUME = "use a larger volume: it holds the archives and what is in them"
FULL = (errno.ENOSPC, errno.EDQUOT)


def extract(channel: Channel, say: Callable[[str], None]) -> None:
    """Unpacks all archives of the channel, those in its subfolders too. Raises UserError for the first damaged one."""
    root = Path(channel.folder)
    if not root.is_dir():
        raise UserError(f"channel {channel.name!r}", f"{root} is not a folder", fix="check the channel's data source")
    with alone(root):
        done = Extracted.read(root)
        found, others = _archives(root)
        archives = [path for path in found if not done.has(path)]
        if others and not found:
            raise _unknown(channel, root, others)
        if not archives:
            what = "is unpacked already" if done.files else "has no archive to unpack"
            say(f"channel {channel.name} {what}: {root}")
            return
        sizes = {path: path.stat().st_size for path in archives}
        total = sum(sizes.values())
        say(f"unpacking {len(archives)} archives ({size_text(total)}) of channel {channel.name} in {root}")
        started = time.monotonic()
        with SetupProgress(channel.name, total, say) as progress:
            for path in archives:
                progress.begins(str(path.relative_to(root)))
                if notice := _unpack(path, channel.name, root, done, progress):
                    say(f"channel {channel.name}, archive {path.relative_to(root)!s}: {notice}")
                progress.ends(sizes[path])
        took = f"{time.monotonic() - started:.1f} s"
        packed = (
            f"; {len(others)} in other formats stay packed, such as {others[0].relative_to(root)}" if others else ""
        )
        say(
            f"unpacked {progress.files} files ({size_text(progress.written)}) of channel {channel.name} in {took}{packed}"
        )


def _is_archive(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _unknown(channel: Channel, root: Path, others: list[Path]) -> UserError:
    """The error for a channel of which nothing can be unpacked: the program would find no data."""
    first, more = str(others[0].relative_to(root)), f" and {len(others) - 1} more" if len(others) > 1 else ""
    return UserError(
        f"channel {channel.name!r}", f"{first!r}{more}: archives of this format are not unpacked", allowed=", ".join(SUFFIXES),
        fix="pack the data in one of these formats, or do not have this channel unpacked",
    )  # fmt: skip


def _archives(root: Path) -> tuple[list[Path], list[Path]]:
    """The archives below the folder, and those in other formats, in the order of their paths. Links to folders are not followed."""
    found, others = [], []
    for parent, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(STAGE)]
        found += [
            Path(parent, name) for name in files if _is_archive(name) and os.path.isfile(os.path.join(parent, name))
        ]
        others += [Path(parent, name) for name in files if name.lower().endswith(OTHERS)]
    return sorted(found), sorted(others)


@dataclass(slots=True)
class Extracted:
    """The archives of a channel that are unpacked. Paths are relative to the channel's folder."""

    root: Path
    files: dict[str, list[int]] = field(default_factory=dict)  # size and time of change of each unpacked archive
    inner: set[str] = field(default_factory=set)  # archives that came out of archives: they stay as they are

    @classmethod
    def read(cls, root: Path) -> Extracted:
        """The list in this folder; an absent or damaged one is empty, and then all is unpacked once more."""
        try:
            with open(root / DONE, "rb") as file:
                found = loads(file.read(LARGEST_LIST))
        except (OSError, ValueError):
            found = {}
        files, inner = (found.get("files"), found.get("inner")) if isinstance(found, dict) else (None, None)
        return cls(
            root,
            dict(files) if isinstance(files, dict) else {},
            {name for name in inner if isinstance(name, str)} if isinstance(inner, list) else set(),
        )

    def has(self, archive: Path) -> bool:
        """True if this archive need not be unpacked."""
        name = str(archive.relative_to(self.root))
        return name in self.inner or self.files.get(name) == _stamp(archive)

    def add(self, archive: Path) -> None:
        """Notes that the archive is unpacked. Raises OSError."""
        self.files[str(archive.relative_to(self.root))] = _stamp(archive)
        self._write()

    def add_inner(self, names: list[Path]) -> None:
        """Notes archives that are about to come out of an archive. Raises OSError."""
        if names:
            self.inner |= {str(name.relative_to(self.root)) for name in names}
            self._write()

    def _write(self) -> None:
        write_aside(self.root / DONE, json.dumps({"files": self.files, "inner": sorted(self.inner)}))


def _stamp(archive: Path) -> list[int]:
    found = archive.stat()
    return [found.st_size, found.st_mtime_ns]


def _unpack(archive: Path, channel: str, root: Path, done: Extracted, progress: SetupProgress) -> str:
    """Unpacks one archive into the folder in which it lies. Returns a notice for the user, "" without one."""
    where = f"channel {channel!r}, archive {str(archive.relative_to(root))!r}"
    folder, kind = archive.parent, "zip" if archive.name.lower().endswith(ZIP) else "tar"
    unpack = zip_file.unpack if kind == "zip" else _unpack_tar
    inner: list[Path] = []

    def fits(member: tarfile.TarInfo) -> None:
        """Called before a member is written."""
        if member.size >= CHUNK and member.size > (free := shutil.disk_usage(folder).free):
            what = f"member {member.name!r} has {member.size} bytes, but {folder} has {free} bytes free"
            raise UserError(where, what, fix=LARGER_VOLUME)
        if _is_archive(member.name):
            inner.append(folder / member.name)
        progress.file(member.size if member.isreg() else 0)

    def move(stage: Path, target: Path) -> None:
        _merge(stage, target, where, lambda: done.add_inner(inner))

    checker = Checker(where, "the folder of the archive", MOST_MEMBERS, "pack the data into several archives")
    try:
        with open(archive, "rb") as raw, staged(folder, move) as stage:
            progress.follows(raw)
            notice = unpack(raw, stage, checker, fits)
        done.add(archive)
        return notice
    except DAMAGE as error:
        raise _unusable(error, where, archive, kind) from None
    except OSError as error:
        raise _explained(error, where, archive, kind) from None


def _unusable(error: Exception, where: str, archive: Path, kind: str) -> UserError:
    """What is wrong with an archive, and what helps: a new upload mends only a damaged one."""
    what = damaged(error, kind)
    if isinstance(error, zip_file.MemberRefusedError):
        return UserError(where, what, fix=error.fix)
    if kind == "zip" and os.path.isfile(archive.with_suffix(".z01")):
        return UserError(where, what, fix=f"its parts are to be joined first: zip -s 0 {archive.name} --out whole.zip")
    if (content := _content(archive)) not in ("", kind) and not (
        kind == "tar" and content == COMPRESSED.get(archive.suffix.lower())
    ):
        return UserError(
            where, f"{what}; its content is {content}", fix="give it the suffix of its content, or pack it anew"
        )
    return UserError(where, what, fix="upload it once more")


COMPRESSED = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bzip2", ".tbz2": "bzip2", ".xz": "xz", ".txz": "xz"}


def _content(archive: Path) -> str:
    """What the first bytes of a file say that it is; "" if they say nothing."""
    try:
        with open(archive, "rb") as file:
            head = file.read(USTAR_AT + 5)
    except OSError:
        return ""
    if head[USTAR_AT:] == b"ustar":
        return "tar"
    return next((name for begin, name in BEGINNINGS.items() if head.startswith(begin)), "")


def _explained(error: OSError, where: str, archive: Path, kind: str) -> UserError:
    folder, name = archive.parent, os.path.basename(os.fsdecode(error.filename or ""))
    if error.errno is None or (error.errno == errno.EINVAL and not name):  # gzip, bzip2 and zip on damaged data
        return _unusable(error, where, archive, kind)
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
        return UserError(where, f"{name!r} is a file and a folder in the archive", fix="give one of them another name")
    if error.errno == errno.ENAMETOOLONG:
        what = f"a name is too long: {name[:60]!r}.., {len(os.fsencode(name))} bytes"
        return UserError(
            where, what, allowed="names that this disk can hold, mostly 255 bytes", fix="give it a shorter name"
        )
    if error.errno in FULL:
        free = shutil.disk_usage(folder).free
        return UserError(where, f"{error.strerror}: {folder} has {free} bytes free", fix=LARGER_VOLUME)
    return UserError(
        where,
        f"cannot be unpacked: {error.strerror}: {error.filename or folder}",
        fix="check the disk and its permissions",
    )


def _unpack_tar(raw: zip_file.Raw, stage: Path, checker: Checker, fits: Callable[[tarfile.TarInfo], None]) -> str:
    """Checks and writes one member after the other, so that data is decompressed only once. Has no notice."""
    with tarfile.open(fileobj=raw, tarinfo=ArchiveMember) as tar:
        for member in iter(functools.partial(_next, tar), None):
            if checker.admits(member):
                fits(member)
                tar.extract(member, stage, **TRUSTED)
        while tar.fileobj is not None and tar.fileobj.read(CHUNK):  # a compressed file has its checksum at the end
            pass
    return ""


def _next(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    """The next member. tarfile keeps every one in a list; a million of them would take 1 GiB."""
    tar.members = []  # type: ignore[attr-defined]  # not in its type hints, and used here only to forget
    return tar.next()


def _merge(stage: Path, folder: Path, where: str, before: Callable[[], None]) -> None:
    """Moves all files of the stage into the folder. Files of earlier archives are replaced, their folders shared.

    Raises UserError before anything is moved if that cannot be. `before` is called in between.
    """
    for _ in _moves(stage, folder, where):
        pass
    before()
    for source, place in _moves(stage, folder, where):
        os.replace(source, place)


def _moves(stage: Path, folder: Path, where: str) -> Iterator[tuple[str, Path]]:
    """What has to be moved, and where. A folder is moved whole, unless there is one of its name already."""
    waiting = [(stage, folder)]
    while waiting:
        source, target = waiting.pop()
        for entry in os.scandir(source):
            place = target / entry.name
            try:
                there = place.lstat().st_mode
            except FileNotFoundError:
                yield entry.path, place
                continue
            if entry.is_dir(follow_symlinks=False) != stat.S_ISDIR(there):
                what = f"{entry.name!r} is a folder in the archive or in {target}, and no folder in the other"
                raise UserError(where, what, fix="give one of them another name")
            if stat.S_ISDIR(there):
                waiting.append((Path(entry.path), place))
            elif _is_archive(entry.name) and stat.S_ISREG(there):
                raise UserError(where, f"member {entry.name!r} would replace an archive in {target}", fix="rename it")
            else:
                yield entry.path, place
