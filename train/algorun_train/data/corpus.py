"""The bytes of a text channel, or of the embedded text, equal on all hosts."""

import hashlib
import os
import platform
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from algorun_train.errors import UserError
from algorun_train.ranks.communicator import Communicator

ALLOWED = "a folder of text files (UTF-8 or any other bytes without zeros), at any depth"
LARGEST = 4 * 2**30  # bytes; every rank holds the whole text in memory
EMBEDDED = 2 * 2**20  # bytes: 8,000 sequences of 256, and no more to wait for
LOOKED_AT = 8192  # bytes at the beginning of a file in which a zero means that it is no text, as grep and git take it


@dataclass(frozen=True, slots=True)
class Corpus:
    """One channel's text. `checksum` tells two texts apart."""

    text: bytes
    checksum: str


def from_channel(channel: str, root: Path, comm: Communicator) -> Corpus:
    """All text files below `root`, one after the other in the order of their names.

    UserError, the same on all ranks, for a channel without text, and for hosts whose files differ.
    """
    where = f"channel '{channel}' at {root}"

    def differs(what: str) -> UserError:
        return UserError(
            f"{where}: {what} than on rank 0's host; allowed: the same files on every host; "
            "fix: use S3DataDistributionType FullyReplicated"
        )

    names = comm.from_leader(lambda: _listed(where, root))
    return _read(names, lambda name: _text(where, root, name), differs, comm)


def embedded(comm: Communicator) -> Corpus:
    """The first modules of Python's standard library, so that a first run needs no download.

    UserError, the same on all ranks, where there are none or hosts have different Pythons.
    """
    root = Path(sysconfig.get_path("stdlib"))
    where = f"the embedded text, Python {platform.python_version()}'s modules at {root},"

    def differs(what: str) -> UserError:
        return UserError(
            f"{where} cannot be used: {what} than on rank 0's host; "
            "fix: use the same image on every host, or give a channel train of text files"
        )

    names = comm.from_leader(lambda: _modules(where, root))
    return _read(names, lambda name: _text(where, root, name), differs, comm)


def _modules(where: str, root: Path) -> list[str]:
    names, size = [], 0
    for file in sorted(root.glob("*.py")):
        if size >= EMBEDDED:
            break
        names.append(file.name)
        size += file.stat().st_size
    if not size:
        raise UserError(f"no channel 'train' is given, and {where} are not there; fix: give a channel of text files")
    return names


def _listed(where: str, root: Path) -> list[str]:
    def refuse(error: OSError) -> None:
        raise UserError(
            f"{where}: {error.filename} cannot be read: {error.strerror}; allowed: {ALLOWED}; fix: check the channel"
        )

    names, size = [], 0
    for folder, subfolders, files in os.walk(root, onerror=refuse, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for path in (os.path.join(folder, name) for name in files if not name.startswith(".")):
            names.append(os.path.relpath(path, root))
            size += os.path.getsize(path) if os.path.exists(path) else 0
    if not size:
        raise UserError(f"{where} holds no text; allowed: {ALLOWED}; fix: put text files into it")
    if size > LARGEST:
        raise UserError(
            f"{where} holds {size / 2**30:.1f} GiB; allowed: at most {LARGEST / 2**30:.0f} GiB, which every rank holds "
            "in memory; fix: give a part of it"
        )
    return sorted(names)


def _text(where: str, root: Path, name: str) -> bytes:
    try:
        text = (root / name).read_bytes()
    except OSError as error:
        raise UserError(
            f"{where}: {name} cannot be read: {error.strerror}; fix: check the file, on every host"
        ) from None
    if b"\0" in text[:LOOKED_AT]:
        raise UserError(f"{where}: {name} is no text: it has zeros in it; allowed: {ALLOWED}; fix: remove the file")
    return text


def _read(
    names: list[str], read: Callable[[str], bytes], differs: Callable[[str], UserError], comm: Communicator
) -> Corpus:
    """This host's files of rank 0's names, all with rank 0's content."""
    texts = comm.on_all(lambda: [read(name) for name in names])
    mine = [hashlib.sha256(text).digest() for text in texts]
    theirs = comm.from_leader(lambda: mine)

    def compare() -> None:
        for name, here, there in zip(names, mine, theirs, strict=True):
            if here != there:
                raise differs(f"{name} has another content on {platform.node()}")

    comm.on_all(compare)
    return Corpus(b"".join(texts), hashlib.sha256(b"".join(mine)).hexdigest())
