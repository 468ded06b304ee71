"""Images of a channel: class folders with images at any depth below, in any size and colour mode, or tar files of them."""

from bisect import bisect_left
from pathlib import Path

from algorun_train.common.errors import UserError
from algorun_train.common.names import same_name

from .channel_files import Found, list_folder, of_two_classes, settle_dangling
from .image_decoding import CorruptImageError, check_header, decode
from .left_out import printable
from .listing import IMAGES, SUFFIXES, Listing
from .splits import refuse_splits
from .tar_index import INDEX
from .tar_listing import ALLOWED as TARS_ALLOWED
from .tar_listing import list_tars

# What lists the images of a channel, and what reads one of them (image_decoding.py).
__all__ = ["CorruptImageError", "check_classes", "check_header", "decode", "find_images", "list_images", "same_classes"]

ALLOWED = f"CLASS/*.jpg or *.tar, with two classes or more; images are {IMAGES}"
COMPRESSED = (".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
TARS = (".tar", *COMPRESSED)
# Names of the splits of a data set, where each of these folders holds the classes.
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"}
UNPACK = "have the zip files unpacked on every host: extract on the input, or the hyperparameter algorun_extract"


def list_images(channel: str, root: Path) -> Listing:
    """Lists the images of a channel without opening one; of tar files it reads the headers. Raises UserError if the folder
    cannot be read or holds fewer than two classes of images."""
    return check_classes(find_images(channel, root))


def check_classes(listing: Listing) -> Listing:
    """The listing. Raises UserError if it has fewer than two classes, or the splits of a data set."""
    where = f"channel '{listing.channel}' at {listing.root}"
    if not listing.classes:
        only = listing.left_out.named()
        raise UserError(
            f"{where} holds no class folders{only and f', only {only}'}; allowed: {ALLOWED}; "
            f"fix: {UNPACK if _has_zip(listing) else 'put images into a folder per class'}"
        )
    _refuse_two_forms(where, listing.classes)
    _refuse_splits_as_classes(where, listing)
    if listing.tars is not None:
        refuse_splits(where, listing.tars.names)
    if len(listing.classes) == 1 and listing.tars is not None:
        raise UserError(
            f"{where} holds one class, {listing.classes[0]}; allowed: two classes or more, {TARS_ALLOWED}; "
            "fix: add the other classes; where class folders are inside another folder, make the tar file in that folder"
        )
    if len(listing.classes) == 1:
        name = listing.classes[0]
        raise UserError(f"{where} holds one class, {name}; allowed: {ALLOWED}; fix: add the other classes' folders")
    return listing


def _refuse_two_forms(where: str, classes: tuple[str, ...]) -> None:
    """Raises UserError for two classes whose names look the same."""
    known: dict[str, str] = {}
    for name in classes:
        if (other := known.setdefault(same_name(name), name)) != name:
            raise UserError(
                f"{where} holds {printable(name)} twice, in two forms of Unicode ({other!a} and {name!a}), so its "
                "images would have two classes; allowed: each name once; fix: move the images of one into the other"
            )


def _refuse_splits_as_classes(where: str, listing: Listing) -> None:
    """Raises UserError if the class folders are the splits of a data set, each with the same folders in it."""
    if (
        len(listing.classes) < 2
        or not SPLITS.issuperset(map(str.lower, listing.classes))
        or (listing.tars and listing.tars.keyed)
    ):
        return
    inside: dict[str, set[str]] = {name: set() for name in listing.classes}
    for file in listing.files:
        split, *between, _ = file.split("/")
        inside[split].add(between[0] if between else "")
    if common := sorted(set.intersection(*inside.values()) - {""}):
        names = sorted(listing.classes, key=str.lower)
        train = next((name for name in names if name.lower().startswith("train")), names[0])
        other = next(name for name in (*(n for n in names if n.lower().startswith("val")), *names) if name != train)
        raise UserError(
            f"{where} holds the folders {_few(list(listing.classes))}, each with {_few(common)} in it: these are the splits of a "
            f"data set, not its classes; allowed: {ALLOWED}; fix: give each split as a channel, --train {listing.root}/{train} "
            f"--validation {listing.root}/{other}"
        )


def _has_zip(listing: Listing) -> bool:
    return any(kind == ".zip" for _, kind in listing.left_out.counts)


def find_images(channel: str, root: Path, skip_bad: bool = False) -> Listing:
    """As `list_images`, of any number of classes. With `skip_bad` links that lead nowhere are left out."""
    where = f"channel '{channel}' at {root}"
    found = list_folder(where, root, (*SUFFIXES, *TARS), ALLOWED)
    settle_dangling(where, found.dangling, found.left_out, skip_bad)
    found.left_out.counts.pop((INDEX, "hidden"), None)  # our own
    tars = {path for path in found.files if path.lower().endswith(TARS)}
    if any("/" not in path for path in tars):
        names = _tar_names(where, found)
        listing = list_tars(channel, root, names, skip_bad)
        for path in set(found.files).difference(names):
            listing.left_out.add(path)
        listing.left_out.join(found.left_out)
        return listing
    return _class_folders(channel, root, found, tars)


def _class_folders(channel: str, root: Path, found: Found, tars: set[str]) -> Listing:
    """The images of class folders. Files beside the folders have no class, and `tars` in a class folder are not read."""
    where = f"channel '{channel}' at {root}"
    if wrong := of_two_classes(found):
        raise UserError(f"{where}: {wrong}")
    by_class: dict[str, list[str]] = {}
    for name in found.folders:  # `files` are sorted, so those of a class are together
        begin, end = (bisect_left(found.files, name + behind) for behind in ("/", chr(ord("/") + 1)))
        by_class[name] = [path for path in found.files[begin:end] if path not in tars]
    for path in tars:
        found.left_out.add(path)
    for path in found.files:
        if "/" not in path:
            found.left_out.add(path, "beside the class folders")
    for name, files in by_class.items():
        if not files:
            only = found.left_out.named([name])
            raise UserError(
                f"{where}: class folder {name} holds no image{only and f', only {only}'}; allowed: {ALLOWED}; "
                "fix: fill or remove it"
            )
    return Listing(
        channel,
        str(root),
        tuple(by_class),
        tuple(path for files in by_class.values() for path in files),
        tuple(label for label, files in enumerate(by_class.values()) for _ in files),
        left_out=found.left_out,
    )


def _tar_names(where: str, found: Found) -> list[str]:
    """The tar files of a channel. Raises UserError if there is something beside them that could be meant instead."""
    top = [path for path in found.files if "/" not in path]
    if compressed := [name for name in top if name.lower().endswith(COMPRESSED)]:
        raise UserError(
            f"{where} holds {_few(compressed)}, which {'is' if len(compressed) == 1 else 'are'} compressed; "
            "allowed: uncompressed .tar files, since images are read by their offset; "
            "fix: decompress (gunzip, bunzip2, unxz or unzstd), or unpack into class folders"
        )
    names = [name for name in top if name.lower().endswith(TARS)]
    if found.folders:
        raise UserError(
            f"{where} holds tar files ({_few(names)}) and folders ({_few(found.folders)}); allowed: either; "
            "fix: move one of them to another channel"
        )
    return names


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def same_classes(train: Listing, validation: Listing) -> Listing:
    """`validation` with the class numbers of `train`: folders and tar files may order classes in another way. Raises UserError if
    the two channels have different classes: the model's outputs would mean different things."""
    here, there = ({same_name(name) for name in each.classes} for each in (train, validation))
    if here == there:
        return validation.in_classes(train.classes)
    parts = [
        f"{', '.join(sorted(names)[:5])} only in {channel}"
        for names, channel in ((here - there, train.channel), (there - here, validation.channel))
        if names
    ]
    raise UserError(
        f"channels '{train.channel}' and '{validation.channel}' differ in their classes: {'; '.join(parts)}; "
        "allowed: the same class folders in both; fix: add or remove the folders named"
    )
