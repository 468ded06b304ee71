"""What is in a tar file of images: one pass over its headers. No image is read.

The names follow webdataset: `KEY.jpg` beside `KEY.cls`, or, without any `.cls`, the class's folder inside the tar file.
"""

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .channel_files import Dangling, find_files, of_two_classes
from .left_out import REPLACED, LeftOut, is_never_data
from .listing import SUFFIXES
from .tar_samples import LABEL, TarPiece, key_of, samples
from .tar_tree import SPARSE, BadTarError, Bytes, Link, Node, TarTree, clean

BLOCK = 512
ENDING = 64 * 2**10  # bytes after the last member that are looked at; tar pads to 10 KiB
MEMBERS = (f".{LABEL}", *SUFFIXES)
LONGEST_CLASS = 256  # bytes of a .cls file
MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class TarMember(NamedTuple):
    """One image: its name inside the tar file, its first byte there, its bytes. `label` is the text of its `.cls` file,
    None if it has none."""

    name: str
    offset: int
    size: int
    label: str | None


@dataclass(frozen=True, slots=True)
class TarIndex:
    """The images of one tar file of `size` bytes, last changed at `mtime_ns`. `keyed`: it has `.cls` files. `bare` are its
    class folders without an image, `dangling` its links that may have been images."""

    size: int
    mtime_ns: int
    images: tuple[TarMember, ...] = ()
    keyed: bool = False
    bare: tuple[str, ...] = ()
    dangling: tuple[Dangling, ...] = ()
    left_out: LeftOut = field(default_factory=LeftOut)


def read_headers(path: Path) -> TarIndex:
    """Reads the headers of a tar file, and the `.cls` files in it. Raises BadTarError and OSError."""
    with path.open("rb") as file:
        state = os.fstat(file.fileno())
        _refuse_compressed(file.read(6), path.name)
        contents = _Contents(path, state)
        return contents.keyed(file.fileno()) if contents.labels else contents.class_folders()


class _Contents:
    """The members of one tar file. `pieces` are its images and `.cls` files, in its order; `labels` counts the latter."""

    def __init__(self, path: Path, state: os.stat_result) -> None:
        self.size, self.mtime_ns = state.st_size, state.st_mtime_ns
        self.tree = TarTree()
        self.pieces: list[tuple[str, Node, int]] = []
        self.labels = 0
        self.others = LeftOut()  # of a tar file with keys
        run, last = 0, None
        for member in _members(path, self.size):
            name = clean(member.name)
            parts = name.split("/")
            if not name or (".." in parts and member.isdir()):
                continue
            if ".." in parts:
                raise BadTarError(
                    f"holds {member.name}, a name with ..; allowed: names inside the tar file's own folder; "
                    "fix: write the tar file from inside the folder (tar cf NAME.tar -C FOLDER .)"
                )
            self.tree.add(name, member)
            if name not in self.tree.nodes:
                continue
            if never := [part for part in parts if is_never_data(part)]:
                self.others.add(name, None if never[0] == parts[-1] else f"in {never[0]}")
                continue
            key, _ = key_of(name)
            run, last = run + (key != last), key
            lower = name.lower()
            if lower.endswith(MEMBERS):
                self.pieces.append((name, self.tree.nodes[name], run))
                self.labels += lower.endswith(MEMBERS[0])
            else:
                self.others.add(name)

    def class_folders(self) -> TarIndex:
        """The images by their folders, as the extracted tar file has them. Raises BadTarError."""
        found = find_files(self.tree, SUFFIXES)
        if wrong := of_two_classes(found):
            raise BadTarError(wrong)
        for name in self.tree.replaced:
            if name.lower().endswith(SUFFIXES) and not any(is_never_data(part) for part in name.split("/")):
                found.left_out.add(name, REPLACED)
        filled = {name.partition("/")[0] for name in found.files}
        bare = tuple(folder for folder in found.folders if folder not in filled)
        images = tuple(TarMember(name, *self.tree.content(name), None) for name in found.files)
        return TarIndex(self.size, self.mtime_ns, images, False, bare, tuple(found.dangling), found.left_out)

    def keyed(self, descriptor: int) -> TarIndex:
        """The images with the labels of their samples. Raises BadTarError."""
        pieces: list[TarPiece] = []
        dangling: list[Dangling] = []
        for name, node, run in self.pieces:
            content = self._content(name, node)
            if content is None:
                dangling.append(Dangling(name, node.text if isinstance(node, Link) else "a device"))
            else:
                pieces.append(TarPiece(name, content, run))
        images = tuple(
            TarMember(image.name, *image.content, label and _label(descriptor, label))
            for image, label in samples(pieces, self.others)
        )
        return TarIndex(self.size, self.mtime_ns, images, True, (), tuple(dangling), self.others)

    def _content(self, name: str, node: Node) -> Bytes | None:
        """Where the bytes of a piece are; None if it is a link that leads to no file."""
        if isinstance(node, Link) and not node.lost and not node.text.startswith("/"):
            target = self.tree.follow(f"{name.rpartition('/')[0]}/{node.text}")
            if target and target.real in self.tree.replaced:
                raise BadTarError(
                    f"holds {name} as a link to {target.real}, a name that comes twice; allowed: links to a name that comes "
                    "once; fix: write the tar file again (tar --dereference --hard-dereference)"
                )
            node = self.tree.nodes.get(target.real) if target else None
        if node == SPARSE:
            raise BadTarError(f"holds {name} as a sparse file; fix: write the tar file without --sparse")
        return node if isinstance(node, tuple) else None


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
                # A link may carry the size of its target, and a sparse file has fewer bytes here than its size.
                if member.isreg() and not member.issparse() and member.offset_data + member.size > size:
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
            "fix: pass them as files of their own"
        )


def _refuse_compressed(begin: bytes, name: str) -> None:
    for magic, kind in MAGIC.items():
        if begin.startswith(magic):
            raise BadTarError(
                f"is compressed ({kind}); allowed: uncompressed tar files, since images are read by their offset; "
                f"fix: decompress {name} first"
            )


def _label(descriptor: int, piece: TarPiece) -> str:
    """The class that a `.cls` file names. Raises BadTarError."""
    offset, size = piece.content
    try:
        label = os.pread(descriptor, min(size, LONGEST_CLASS + 1), offset).decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        label = ""
    if not label.isprintable() or not label or size > LONGEST_CLASS:
        raise BadTarError(
            f"holds {piece.name} of {size} bytes, which names no class; allowed: a number or a name of up to "
            f"{LONGEST_CLASS} bytes in UTF-8, in one line; fix: write the class into it"
        )
    return str(int(label)) if label.isdecimal() else label
