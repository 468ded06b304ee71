"""Tar files of images as a `Listing`: which class each image has."""

from pathlib import Path

import numpy as np

from algorun_train.common.errors import UserError

from .listing import Listing, Tars
from .tar_index import Member, TarIndex, read_indexes

ALLOWED = "KEY.jpg, KEY.jpeg or KEY.png beside KEY.cls, or CLASS/*.jpg, in each tar file"


def list_tars(channel: str, root: Path, names: list[str]) -> Listing:
    """Lists the images in the tar files `names` of a channel. Raises UserError if one of them cannot be used."""
    where = f"channel '{channel}' at {root}"
    indexes = read_indexes(where, root, names)
    for name, index in indexes.items():
        if not index.images:
            raise UserError(f"{where}: {name} holds no image; allowed: {ALLOWED}; fix: fill or remove it")
    classes = _classes(where, indexes)
    numbers = {name: number for number, name in enumerate(sorted_classes(set(classes)))}
    images = [(tar, member) for tar, index in enumerate(indexes.values()) for member in index.images]
    labels = [numbers[name] for name in classes]
    order = sorted(range(len(images)), key=lambda i: (labels[i], images[i][1].name, images[i][0]))
    spans = np.array([(images[i][0], images[i][1].offset, images[i][1].size) for i in order], np.int64)
    return Listing(
        channel,
        str(root),
        tuple(numbers),
        tuple(images[i][1].name for i in order),
        tuple(labels[i] for i in order),
        Tars(tuple(indexes), tuple(index.size for index in indexes.values()), spans),
    )


def _classes(where: str, indexes: dict[str, TarIndex]) -> list[str]:
    """The class of each image, in the order of the indexes."""
    in_files = any(member.label is not None for index in indexes.values() for member in index.images)
    found: list[str] = []
    for name, index in indexes.items():
        for member in index.images:
            label = member.label if in_files else _folder(member)
            if label is None:
                missing = "has no .cls file beside it" if in_files else "has no .cls file and is in no class folder"
                raise UserError(
                    f"{where}: {name}: the label of {member.name} is missing: it {missing}; allowed: {ALLOWED}; "
                    f"fix: add {'KEY.cls' if in_files else 'KEY.cls or class folders'} to the tar file"
                )
            found.append(label)
    return found


def _folder(member: Member) -> str | None:
    folder, slash, _ = member.name.lstrip("/").partition("/")
    return folder if slash else None


def sorted_classes(names: set[str]) -> list[str]:
    """Numbers by their value, names by their text."""
    return sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))
