"""What is in a tar file of images: one pass over its headers, kept in a file beside it. No image is read.

The names follow webdataset: `KEY.jpg` beside `KEY.cls`, or, without any `.cls`, the class's folder inside the tar file.
"""

import contextlib
import gzip
import json
import os
import platform
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from algorun_train.common import files
from algorun_train.common.errors import UserError

INDEX = ".algorun-tar-index.json"
VERSION = 1
BLOCK = 512
ENDING = 64 * 2**10  # bytes after the last member that are looked at; tar pads to 10 KiB
LONGEST_CLASS = 256  # bytes of a .cls file
SUFFIXES = (".png", ".jpg", ".jpeg")
COMPRESSED = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst", ".lz4")
MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Member(NamedTuple):
    """One image: its name inside the tar file, its first byte there, its bytes. `label` is the text of its `.cls` file,
    None if it has none."""

    name: str
    offset: int
    size: int
    label: str | None


@dataclass(frozen=True, slots=True)
class TarIndex:
    """The images of one tar file of `size` bytes, last changed at `mtime_ns`."""

    size: int
    mtime_ns: int
    images: tuple[Member, ...]


class BadTarError(Exception):
    """What is wrong with a tar file, with the fix."""


def is_compressed(name: str) -> bool:
    """Whether `name` is that of a compressed tar file."""
    stem, suffix = os.path.splitext(name.lower())
    return suffix in COMPRESSED and (suffix.startswith(".t") or stem.endswith(".tar"))


def read_indexes(where: str, root: Path, names: list[str]) -> dict[str, TarIndex]:
    """The indexes of the tar files `names` in `root`, by name. Only tar files that the kept index does not know, or that
    have changed since, are read. Raises UserError, which begins with `where`."""
    known = _kept(root)
    indexes: dict[str, TarIndex] = {}
    try:
        for name in names:
            state = os.stat(root / name)
            old = known.get(name)
            fresh = old is None or (old.size, old.mtime_ns) != (state.st_size, state.st_mtime_ns)
            indexes[name] = read_headers(root / name) if fresh or old is None else old
    except BadTarError as error:
        raise UserError(f"{where}: {root / name} {error}") from None
    except OSError as error:
        raise UserError(
            f"{where}: {root / name} cannot be read: {error.strerror}; fix: check its permissions"
        ) from None
    if indexes != known:
        _keep(root, indexes)
    return indexes


def read_headers(path: Path) -> TarIndex:
    """Reads the headers of a tar file, and the `.cls` files in it. Raises BadTarError and OSError."""
    with path.open("rb") as file:
        state = os.fstat(file.fileno())
        _refuse_compressed(file.read(6), path.name)
        file.seek(0)
        images: list[tuple[str, int, int]] = []
        labels: dict[str, str] = {}
        for member in _members(path, state.st_size):
            name = member.name.removeprefix("./")
            if not member.isreg() or _hidden(name):
                continue
            suffix = os.path.splitext(name)[1].lower()
            if suffix in SUFFIXES:
                if member.issparse():
                    raise BadTarError(f"holds {name} as a sparse file; fix: write the tar file without --sparse")
                images.append((name, member.offset_data, member.size))
            elif suffix == ".cls":
                labels[_key(name)] = _label(os.pread(file.fileno(), LONGEST_CLASS + 1, member.offset_data), member)
    found = (Member(*image, labels.get(_key(image[0])) if labels else None) for image in images)
    return TarIndex(state.st_size, state.st_mtime_ns, tuple(found))


def _members(path: Path, size: int) -> Iterator[tarfile.TarInfo]:
    """The members of a tar file. tarfile takes a broken header behind the first as the end of the file, so the end is
    checked here. Raises BadTarError."""
    early = f"ends early: at offset {{}} of {size} bytes {{}}; allowed: complete tar files; fix: copy or write it again"
    offset = 0
    try:
        with tarfile.open(path, "r:") as archive:
            while (member := archive.next()) is not None:
                offset = archive.offset  # of the next header
                archive.members.clear()  # type: ignore[attr-defined]  # else it keeps all, about 1 KiB each
                if member.offset_data + member.size > size:
                    raise BadTarError(early.format(member.offset_data, f"begins {member.name} of {member.size} bytes"))
                yield member
    except tarfile.TarError as error:
        if size < BLOCK or offset:
            raise BadTarError(early.format(min(offset, size), f"is no complete member ({error})")) from None
        raise BadTarError(f"is no tar file: {error}; fix: replace or remove it") from None
    with path.open("rb") as file:
        file.seek(offset)
        rest = file.read(ENDING)
    if len(rest) < BLOCK:
        raise BadTarError(early.format(offset, "the mark of its end is missing"))
    if any(rest[:BLOCK]):
        raise BadTarError(
            f"has no readable header at offset {offset} of {size} bytes; allowed: complete tar files; "
            "fix: copy or write it again"
        )
    if any(rest):
        raise BadTarError(
            f"goes on after its end mark at offset {offset}, as tar files that were joined do; allowed: one tar file; "
            "fix: pass them as files of their own, or join them with tar --concatenate"
        )


def _refuse_compressed(begin: bytes, name: str) -> None:
    for magic, kind in MAGIC.items():
        if begin.startswith(magic):
            raise BadTarError(
                f"is compressed ({kind}); allowed: uncompressed tar files, since images are read by their offset; "
                f"fix: decompress {name} first"
            )


def _hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")


def _key(name: str) -> str:
    """webdataset's key: the name up to the first dot behind the last slash."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def _label(text: bytes, member: tarfile.TarInfo) -> str:
    try:
        label = text[: member.size].decode().strip()
    except UnicodeDecodeError:
        label = ""
    if not label or member.size > LONGEST_CLASS:
        raise BadTarError(
            f"holds {member.name} of {member.size} bytes, which names no class; allowed: a number or a name of up to "
            f"{LONGEST_CLASS} bytes in UTF-8; fix: write the class into it"
        )
    return str(int(label)) if label.isdecimal() else label


def _kept(root: Path) -> dict[str, TarIndex]:
    """The index that an earlier job left in `root`; empty if there is none that can be used."""
    try:
        with gzip.open(root / INDEX, "rt", encoding="utf-8") as file:
            kept = json.load(file)
        if kept["version"] != VERSION:
            return {}
        return {
            name: TarIndex(size, mtime_ns, tuple(Member(*image) for image in images))
            for name, (size, mtime_ns, images) in kept["tars"].items()
        }
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _keep(root: Path, indexes: dict[str, TarIndex]) -> None:
    """Leaves the indexes in `root` for the next job. A folder that cannot be written stays without them."""
    tars = {name: (index.size, index.mtime_ns, index.images) for name, index in indexes.items()}
    packed = gzip.compress(json.dumps({"version": VERSION, "tars": tars}).encode(), 1)
    with contextlib.suppress(OSError):
        # Hosts that share the folder write at once, from containers that may number their processes alike.
        files.write(root / INDEX, lambda file: file.write(packed), f"{platform.node()}-{os.getpid()}")
