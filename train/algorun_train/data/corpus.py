"""Reads the bytes of a text channel, or of the embedded text, and checks that all hosts have the same."""

import codecs
import hashlib
import os
import platform
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from algorun_train.common.errors import UserError
from algorun_train.ranks.communicator import Communicator

from .channel_files import list_folder, settle_dangling
from .first_bytes import not_text
from .left_out import LeftOut
from .splits import refuse_splits

ALLOWED = "a folder of text files (UTF-8 or any other bytes without zeros), at any depth"
LARGEST = 4 * 2**30  # bytes; every rank holds the whole text in memory
EMBEDDED = 2 * 2**20  # bytes: 8,000 sequences of 256; more would only take longer


@dataclass(frozen=True, slots=True)
class Corpus:
    """One channel's text. `checksum` tells two texts apart."""

    text: bytes
    checksum: str


def from_channel(channel: str, root: Path, comm: Communicator) -> Corpus:
    """The contents of all text files below `root`, joined in the order of their names. The log says what
    is left out.

    Raises UserError, the same on all ranks, if the channel has no text or several splits, or if the hosts' files
    differ.
    """
    where = f"channel '{channel}' at {root}"

    def differs(what: str) -> UserError:
        return UserError(
            f"{where}: {what} than on rank 0's host; allowed: the same files on every host; "
            "fix: use S3DataDistributionType FullyReplicated"
        )

    names, left_out = comm.from_leader(lambda: _listed(where, root))
    if line := left_out.line(channel):
        comm.say(line)
    return _read(names, lambda name: _text(where, root, name), differs, comm)


def embedded(comm: Communicator) -> Corpus:
    """The first modules of Python's standard library: a first run needs no download.

    Raises UserError, the same on all ranks, if the modules are missing or the hosts have different Pythons.
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
        raise UserError(
            f"no channel 'train' is given, and {where} cannot be used: there are none; fix: give a channel of text files"
        )
    return names


def _listed(where: str, root: Path) -> tuple[list[str], LeftOut]:
    """The names of a channel's files, sorted, and what is left out."""
    found = list_folder(where, root, ("",), ALLOWED)
    settle_dangling(where, found.dangling, found.left_out)
    refuse_splits(where, found.files)
    size = sum(os.path.getsize(root / name) for name in found.files)
    if not size:
        only = found.left_out.named()
        raise UserError(
            f"{where} holds no text{only and f', only {only}'}; allowed: {ALLOWED}; fix: put text files into it"
        )
    if size > LARGEST:
        raise UserError(
            f"{where} holds {size / 2**30:.1f} GiB; allowed: at most {LARGEST / 2**30:.0f} GiB, which every rank holds "
            "in memory; fix: give a part of it"
        )
    return found.files, found.left_out


def _text(where: str, root: Path, name: str) -> bytes:
    try:
        text = (root / name).read_bytes()
    except OSError as error:
        raise UserError(
            f"{where}: {name} cannot be read: {error.strerror}; fix: check the file, on every host"
        ) from None
    if fault := not_text(text):
        raise UserError(f"{where}: {name} {fault}")
    return text.removeprefix(codecs.BOM_UTF8)


def _read(
    names: list[str], read: Callable[[str], bytes], differs: Callable[[str], UserError], comm: Communicator
) -> Corpus:
    """Reads the files `names` on this host and checks that their contents equal rank 0's. `differs` makes the error."""
    texts = comm.on_all(lambda: [read(name) for name in names])
    mine = [hashlib.sha256(text).digest() for text in texts]
    theirs = comm.from_leader(lambda: mine)

    def compare() -> None:
        for name, here, there in zip(names, mine, theirs, strict=True):
            if here != there:
                raise differs(f"{name} has another content on {platform.node()}")

    comm.on_all(compare)
    return Corpus(b"".join(texts), hashlib.sha256(b"".join(mine)).hexdigest())
