"""Image folders: `class/*.png`, `*.jpg`, `*.jpeg`, at any depth below the class folder, in any size and colour mode."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from algorun_train.common.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg")
ALLOWED = "class/*.png, class/*.jpg or class/*.jpeg, with two classes or more"


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of one channel. `files` are relative to `root`, sorted by class and name; `labels` are their class numbers."""

    channel: str
    root: str
    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: tuple[int, ...]

    def path(self, index: int) -> str:
        return os.path.join(self.root, self.files[index])

    def subset(self, indices: Iterable[int]) -> "Listing":
        chosen = list(indices)
        files = tuple(self.files[i] for i in chosen)
        return replace(self, files=files, labels=tuple(self.labels[i] for i in chosen))


def list_images(channel: str, root: Path) -> Listing:
    """Lists the images of a channel without opening one. Raises UserError if the folder cannot be read or is no image folder."""
    where = f"channel '{channel}' at {root}"
    try:
        names = sorted(e.name for e in os.scandir(root) if e.is_dir() and not e.name.startswith("."))
    except OSError as error:
        raise UserError(
            f"{where} cannot be read: {error.strerror}; allowed: a folder of {ALLOWED}; fix: check the channel's path"
        ) from None
    if not names:
        raise UserError(f"{where} holds no class folders; allowed: {ALLOWED}; fix: put images into a folder per class")
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = sorted(_images_below(where, root, name))
        if not found:
            raise UserError(f"{where}: class folder {name} holds no image; allowed: {ALLOWED}; fix: fill or remove it")
        files += found
        labels += [label] * len(found)
    if len(names) == 1:
        raise UserError(f"{where} holds one class, {names[0]}; allowed: {ALLOWED}; fix: add the other classes' folders")
    return Listing(channel, str(root), tuple(names), tuple(files), tuple(labels))


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


def check_header(listing: Listing, index: int) -> None:
    """Reads the header of an image file, not its pixels. Raises UserError if that fails."""
    try:
        with Image.open(listing.path(index)):
            pass
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _corrupt(listing, index, error) from None


def decode(listing: Listing, index: int, side: int) -> NDArray[np.uint8]:
    """The image as uint8 [side, side, 3]: cropped to a square around its middle, then resized (bilinear). Raises UserError."""
    try:
        with Image.open(listing.path(index)) as file:
            image: Image.Image = file
            if image.mode.startswith(("I", "F")):  # 16 bits per pixel: converting would clip nearly all to white
                image = image.point(lambda level: level / 256).convert("L")
            file.draft("RGB", (side, side))  # lets the JPEG decoder skip detail that the resize would drop
            square = ImageOps.fit(image.convert("RGB"), (side, side), method=Image.Resampling.BILINEAR)
            return np.asarray(square)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _corrupt(listing, index, error) from None


def _corrupt(listing: Listing, index: int, error: Exception) -> UserError:
    path = listing.path(index)
    if isinstance(error, FileNotFoundError):
        return UserError(
            f"channel '{listing.channel}': {path} is missing on this host, but rank 0's host has it; "
            "allowed: the same files on every host; fix: use S3DataDistributionType FullyReplicated"
        )
    reason = str(error).replace(repr(path), "the file")
    return UserError(
        f"channel '{listing.channel}': {path} is a corrupt image: {reason}; "
        f"allowed: images that Pillow can decode; fix: replace or remove the file"
    )
