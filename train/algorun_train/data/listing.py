"""`Listing`: the images of one channel, wherever their bytes are."""

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from algorun_train.common.errors import UserError
from algorun_train.common.names import same_name

from .left_out import LeftOut

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")  # of images, in lower case
IMAGES = ", ".join(SUFFIXES)  # for messages


@dataclass(frozen=True, slots=True, eq=False)
class Tars:
    """Where images lie in tar files. `names` and `sizes` (bytes) are of the tar files; row i of `spans`, int64
    [images, 3], is the tar file's number, the first byte and the number of bytes of image i. `keyed`: classes are the texts of
    `.cls` files, not class folders."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    spans: NDArray[np.int64]
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of one channel. `files` are relative to `root`, or to their tar file, sorted by class and name; `labels`
    are their class numbers. `hosts`, int64 [images], is the first rank of the host that reads each image, where hosts have
    different files; None if every host has all. `left_out` counts what is in the channel and no image."""

    channel: str
    root: str
    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: tuple[int, ...]
    tars: Tars | None = None
    hosts: NDArray[np.int64] | None = None
    left_out: LeftOut = field(default_factory=LeftOut)

    def name(self, index: int) -> str:
        """The name of an image for messages."""
        if self.tars is None:
            return os.path.join(self.root, self.files[index])
        return f"{os.path.join(self.root, self.tars.names[self.tars.spans[index, 0]])}, member {self.files[index]},"

    def open(self, index: int) -> str | BinaryIO:
        """An image for `PIL.Image.open`: its path, or its bytes. Raises OSError."""
        if self.tars is None:
            return os.path.join(self.root, self.files[index])
        tar, offset, size = (int(n) for n in self.tars.spans[index])
        # Opened for each image, as files of folders are: a channel may have more tar files than a process may hold open.
        descriptor = os.open(os.path.join(self.root, self.tars.names[tar]), os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)
        if len(data) < size:
            raise OSError(f"the tar file ends {size - len(data)} bytes before the end of the image")
        return io.BytesIO(data)

    def subset(self, indices: Iterable[int]) -> "Listing":
        chosen = list(indices)
        files = tuple(self.files[i] for i in chosen)
        tars = self.tars and replace(self.tars, spans=self.tars.spans[chosen])
        hosts = None if self.hosts is None else self.hosts[chosen]
        return replace(self, files=files, labels=tuple(self.labels[i] for i in chosen), tars=tars, hosts=hosts)

    def in_classes(self, classes: tuple[str, ...]) -> "Listing":
        """The same images with the class numbers of `classes`, which name the same classes (`same_name`) in another order."""
        numbers = {same_name(name): number for number, name in enumerate(classes)}
        of = [numbers[same_name(name)] for name in self.classes]
        return replace(self, classes=classes, labels=tuple(of[label] for label in self.labels))


def check_tars(listing: Listing) -> None:
    """Raises UserError if this host's tar files are not those that rank 0's host has listed."""
    if listing.tars is None or listing.hosts is not None:
        return
    for name, size in zip(listing.tars.names, listing.tars.sizes, strict=True):
        path = os.path.join(listing.root, name)
        try:
            here = os.stat(path).st_size
        except OSError as error:
            found = f"cannot be read on this host: {error.strerror}"
        else:
            if here == size:
                continue
            found = f"has {here} bytes on this host"
        raise UserError(
            f"channel '{listing.channel}': {path} {found}, but {size} bytes on rank 0's host; "
            "allowed: the same files on every host; fix: use S3DataDistributionType FullyReplicated"
        )
