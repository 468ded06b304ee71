"""Opens the images of a listing: their headers, and their pixels in the size that the model takes."""

import re

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from algorun_train.common.errors import UserError

from .listing import Listing


class CorruptImageError(UserError):
    """An image that Pillow cannot decode."""


def check_header(listing: Listing, index: int) -> None:
    """Reads the header of an image, not its pixels. Raises UserError if that fails."""
    try:
        with Image.open(listing.open(index)):
            pass
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _corrupt(listing, index, error) from None


def decode(listing: Listing, index: int, side: int) -> NDArray[np.uint8]:
    """The image as uint8 [side, side, 3]: cropped to a square around its middle, then resized (bilinear). Raises UserError."""
    try:
        with Image.open(listing.open(index)) as file:
            image: Image.Image = file
            if image.mode.startswith(("I", "F")):  # 16 bits per pixel: converting would clip nearly all to white
                image = image.point(lambda level: level / 256).convert("L")
            file.draft("RGB", (side, side))  # lets the JPEG decoder skip detail that the resize would drop
            square = ImageOps.fit(image.convert("RGB"), (side, side), method=Image.Resampling.BILINEAR)
            return np.asarray(square)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _corrupt(listing, index, error) from None


def _corrupt(listing: Listing, index: int, error: Exception) -> UserError:
    name = listing.name(index)
    if isinstance(error, FileNotFoundError):
        return UserError(
            f"channel '{listing.channel}': {name} is missing on this host, but rank 0's host has it; "
            "allowed: the same files on every host; fix: use S3DataDistributionType FullyReplicated"
        )
    reason = re.sub(r"<_io\.BytesIO object at \w+>", "the file", str(error).replace(repr(name), "the file"))
    return CorruptImageError(
        f"channel '{listing.channel}': {name} is a corrupt image: {reason}; "
        f"allowed: images that Pillow can decode; fix: replace or remove the file, or leave it out by --skip-bad-samples"
    )
