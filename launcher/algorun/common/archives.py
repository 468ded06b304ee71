"""Unpacks an untrusted tar file: completely or not at all, and never outside the target folder.

The launcher unpacks code with it, the client what a job has left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from . import STAGE
from .archive_members import CHUNK, DAMAGE, TRUSTED, ArchiveMember, Checker
from .errors import UserError

MOST_MEMBERS = 1_000_000


def unpack(
    archive: Path,
    folder: Path,
    where: str,
    *,
    place: str,
    fix: str,
    leave_out: Callable[[str], object] | None = None,
    home: str = "",
) -> int:
    """Unpacks a tar file (plain, gzip, bzip2 or xz) into an empty folder. Returns the number of files and links.

    `where` names the archive in errors, `place` the folder; `fix` says what helps against too many members. `leave_out` and `home`:
    see `Checker`. Raises UserError; the folder is then empty again.
    """
    try:
        with tarfile.open(archive, tarinfo=ArchiveMember) as tar, staged(folder) as stage:
            members = _read(tar, Checker(where, place, MOST_MEMBERS, fix, leave_out=leave_out, home=home))
            need, free = sum(m.size for m in members if m.isreg()), shutil.disk_usage(folder).free
            if need > free:
                raise UserError(
                    where, f"needs {need} bytes, but {folder} has {free} bytes free", fix="use a larger volume"
                )
            tar.extractall(stage, members, **TRUSTED)
            return sum(not member.isdir() for member in members)
    except DAMAGE as error:
        raise UserError(where, damaged(error), allowed="tar, tar.gz, tar.bz2, tar.xz") from None
    except OSError as error:
        raise UserError(
            where,
            f"cannot be unpacked: {error.strerror or error}",
            fix="check space and permissions on this host's disk",
        ) from None


def is_tar(archive: Path) -> bool:
    """True if the file begins as a tar file. Raises an exception of DAMAGE on a damaged one, OSError as `open` does."""
    try:
        with tarfile.open(archive, tarinfo=ArchiveMember):
            return True
    except tarfile.TarError:
        return False


def damaged(error: Exception, kind: str = "tar") -> str:
    """The message for a damaged archive."""
    said = str(error).split("\n")[0].rstrip(":")  # tarfile adds a line for each compression that it has tried
    return f"is not a usable {kind} file: {said or type(error).__name__}"


COMPLETE = f"{STAGE}-complete"  # in it everything is unpacked, and is only moved


def _move(stage: Path, folder: Path) -> None:
    stage.rename(folder / COMPLETE)
    finish(folder)


def finish(folder: Path) -> None:
    """Moves into `folder` what was unpacked completely: a preparation may have been killed before it had moved everything."""
    complete = folder / COMPLETE
    if complete.is_dir():
        for item in sorted(os.listdir(complete)):
            os.rename(complete / item, folder / item)
        complete.rmdir()


@contextlib.contextmanager
def staged(folder: Path, move: Callable[[Path, Path], None] = _move) -> Iterator[Path]:
    """A temporary folder inside `folder`. At the end `move(stage, folder)` moves its files into `folder`; after an error
    they are deleted. The caller sees to it that no other process stages in this folder."""
    stage = folder / f"{STAGE}-{os.getpid()}"
    for abandoned in folder.glob(f"{STAGE}-*"):  # an earlier preparation was killed
        shutil.rmtree(abandoned, ignore_errors=True)
    try:
        stage.mkdir()
        yield stage
        move(stage, folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _read(tar: tarfile.TarFile, checker: Checker) -> list[tarfile.TarInfo]:
    """All members. Reads the file to its end, because only there a compressed file has its checksum."""
    try:
        members = [member for member in tar if checker.admits(member)]
        while tar.fileobj is not None and tar.fileobj.read(CHUNK):
            pass
    except OSError as error:  # gzip raises it on damaged data, the kernel on a member of 2^60 bytes
        raise tarfile.ReadError(str(error.strerror or error)) from None
    return members
