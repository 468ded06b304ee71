"""Tar files of images as a `Listing`: which class each image has."""

from pathlib import Path

import numpy as np

from algorun_train.common.errors import UserError

from .channel_files import settle_dangling
from .left_out import LeftOut
from .listing import IMAGES, Listing, Tars
from .tar_headers import TarIndex, TarMember
from .tar_index import read_indexes

ALLOWED = f"KEY.jpg beside KEY.cls, or CLASS/*.jpg, in each tar file; images are {IMAGES}"
DEREFERENCE = "write the tar file with --dereference --hard-dereference"


def list_tars(channel: str, root: Path, names: list[str], skip_bad: bool = False) -> Listing:
    """Lists the images in the tar files `names` of a channel. With `skip_bad` links that lead nowhere are left out. Raises
    UserError if a tar file cannot be used."""
    where = f"channel '{channel}' at {root}"
    indexes = read_indexes(where, root, names)
    left_out = LeftOut()
    for name, index in indexes.items():
        settle_dangling(f"{where}: {name}", index.dangling, left_out, skip_bad, DEREFERENCE)
        left_out.join(index.left_out)
        if not index.images:
            raise UserError(
                f"{where}: {name} holds no image{_only(index.left_out.named())}; allowed: {ALLOWED}; "
                "fix: fill or remove it"
            )
    classes = _classes(where, indexes)
    for name, index in indexes.items():
        if bare := [folder for folder in index.bare if folder not in classes]:
            raise UserError(
                f"{where}: {name}: class folder {bare[0]} holds no image{_only(left_out.named(bare[:1]))}; "
                f"allowed: {ALLOWED}; fix: fill it or leave it out of the tar file"
            )
    keyed = any(index.keyed for index in indexes.values())
    names_of = (
        sorted_classes(set(classes)) if keyed else sorted(set(classes))
    )  # class folders: as those that are not packed
    numbers = {name: number for number, name in enumerate(names_of)}
    images = [(tar, member) for tar, index in enumerate(indexes.values()) for member in index.images]
    labels = [numbers[name] for name in classes]
    # The offset comes last: tar files that were joined may have one name twice.
    order = sorted(range(len(images)), key=lambda i: (labels[i], images[i][1].name, images[i][0], images[i][1].offset))
    spans = np.array([(images[i][0], images[i][1].offset, images[i][1].size) for i in order], np.int64)
    return Listing(
        channel,
        str(root),
        tuple(numbers),
        tuple(images[i][1].name for i in order),
        tuple(labels[i] for i in order),
        Tars(tuple(indexes), tuple(index.size for index in indexes.values()), spans, keyed),
        left_out=left_out,
    )


def _only(found: str) -> str:
    return found and f", only {found}"


def _classes(where: str, indexes: dict[str, TarIndex]) -> list[str]:
    """The class of each image, in the order of the indexes."""
    in_files = any(index.keyed for index in indexes.values())
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


def _folder(member: TarMember) -> str | None:
    folder, slash, _ = member.name.partition("/")
    return folder if slash else None


def sorted_classes(names: set[str]) -> list[str]:
    """Those of `.cls` files: numbers by their value, names by their text."""
    return sorted(names, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
