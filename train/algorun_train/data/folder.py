"""Images of a channel: class folders with `*.png`, `*.jpg`, `*.jpeg` at any depth below, in any size and colour mode, or
tar files of them."""

import os
from collections.abc import Iterable
from pathlib import Path

from algorun_train.common.errors import UserError

from .listing import Listing
from .tar_index import SUFFIXES, is_compressed
from .tar_listing import ALLOWED as TARS_ALLOWED
from .tar_listing import list_tars

ALLOWED = "class/*.png, class/*.jpg, class/*.jpeg or *.tar, with two classes or more"


def list_images(channel: str, root: Path) -> Listing:
    """Lists the images of a channel without opening one; of tar files it reads the headers. Raises UserError if the folder
    cannot be read or holds fewer than two classes of images."""
    return check_classes(find_images(channel, root))


def check_classes(listing: Listing) -> Listing:
    """The listing. Raises UserError if it has fewer than two classes."""
    where = f"channel '{listing.channel}' at {listing.root}"
    if not listing.classes:
        raise UserError(f"{where} holds no class folders; allowed: {ALLOWED}; fix: put images into a folder per class")
    if len(listing.classes) == 1 and listing.tars is not None:
        raise UserError(
            f"{where} holds one class, {listing.classes[0]}; allowed: two classes or more, {TARS_ALLOWED}; "
            "fix: add the other classes; where class folders are inside another folder, make the tar file in that folder"
        )
    if len(listing.classes) == 1:
        name = listing.classes[0]
        raise UserError(f"{where} holds one class, {name}; allowed: {ALLOWED}; fix: add the other classes' folders")
    return listing


def find_images(channel: str, root: Path) -> Listing:
    """As `list_images`, of any number of classes."""
    where = f"channel '{channel}' at {root}"
    try:
        entries = sorted((e.name, e.is_dir()) for e in os.scandir(root) if not e.name.startswith("."))
    except OSError as error:
        raise UserError(
            f"{where} cannot be read: {error.strerror}; allowed: a folder of {ALLOWED}; fix: check the channel's path"
        ) from None
    names = [name for name, is_folder in entries if is_folder]
    tars = [name for name, is_folder in entries if not is_folder and name.lower().endswith(".tar")]
    compressed = [name for name, is_folder in entries if not is_folder and is_compressed(name)]
    if tars or compressed:
        return _list_tars(channel, root, tars, compressed, names)
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = sorted(_images_below(where, root, name))
        if not found:
            raise UserError(f"{where}: class folder {name} holds no image; allowed: {ALLOWED}; fix: fill or remove it")
        files += found
        labels += [label] * len(found)
    return Listing(channel, str(root), tuple(names), tuple(files), tuple(labels))


def _list_tars(channel: str, root: Path, tars: list[str], compressed: list[str], folders: list[str]) -> Listing:
    where = f"channel '{channel}' at {root}"
    if compressed:
        raise UserError(
            f"{where} holds {_few(compressed)}, which {'is' if len(compressed) == 1 else 'are'} compressed; "
            "allowed: uncompressed .tar files, since images are read by their offset; "
            "fix: decompress (gunzip, bunzip2, unxz or unzstd), or unpack into class folders"
        )
    if folders:
        raise UserError(
            f"{where} holds tar files ({_few(tars)}) and folders ({_few(folders)}); allowed: either; "
            "fix: move one of them to another channel"
        )
    return list_tars(channel, root, tars)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _images_below(where: str, root: Path, name: str) -> Iterable[str]:
    def refuse(error: OSError) -> None:
        raise UserError(f"{where}: {error.filename} cannot be read: {error.strerror}; fix: check its permissions")

    for folder, subfolders, names in os.walk(root / name, onerror=refuse, followlinks=True):
        subfolders.sort()
        below = os.path.relpath(folder, root)
        yield from (os.path.join(below, n) for n in names if n.lower().endswith(SUFFIXES) and not n.startswith("."))


def same_classes(train: Listing, validation: Listing) -> None:
    """Raises UserError if the two channels have different classes: the model's outputs would mean different things."""
    here, there = set(train.classes), set(validation.classes)
    if here == there:
        return
    parts = [
        f"{', '.join(sorted(names)[:5])} only in {channel}"
        for names, channel in ((here - there, train.channel), (there - here, validation.channel))
        if names
    ]
    raise UserError(
        f"channels '{train.channel}' and '{validation.channel}' differ in their classes: {'; '.join(parts)}; "
        "allowed: the same class folders in both; fix: add or remove the folders named"
    )
