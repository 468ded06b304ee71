"""Opens the images of a listing: their headers, and their pixels in the size that the model takes."""

import contextlib
import os
import re

import numpy as np
from numpy.typing import NDArray

# Plugins that are not imported here Pillow would look for by importing all of its 45.
from PIL import (
    BmpImagePlugin,  # noqa: F401
    GifImagePlugin,  # noqa: F401
    Image,
    ImageFile,
    JpegImagePlugin,  # noqa: F401
    PngImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401
)

from algorun_train.common.errors import UserError

from .image_modes import UnusableImageError, check_mode, has_16_bits, to_rgb
from .listing import Listing

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")  # Pillow reads others too, one of them by starting Ghostscript
ALLOWED = f"{', '.join(FORMATS)}, with 1, 8 or 16 bits per channel"
# A JPEG is decoded at a half, a quarter or an eighth of its size if that leaves this many times `side` pixels to resize from,
# as in Pillow's thumbnail. On photographs what comes out differs by 0.6 of 256 levels on average, and by 20 at most.
MARGIN = 2
PNG_HEAD_BYTES = 2**16
ORIENTATION = 274  # a tag of EXIF
# Where Pillow keeps EXIF and XMP of the formats above, TIFF apart. Reading them takes 2 % of the time for a small image.
EXIF_KEYS = frozenset({"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"})
UPRIGHT = {  # as in PIL.ImageOps.exif_transpose
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
MIRRORED_X, MIRRORED_Y = (2, 3, 7, 8), (3, 4, 6, 7)  # orientations with which an axis of the file runs backwards
# The first bytes of files that Pillow may not open.
HEAD_BYTES = 64
BEGINNINGS = {
    b"%!PS": "PostScript", b"\xc5\xd0\xd3\xc6": "PostScript", b"%PDF": "PDF", b"8BPS": "a Photoshop document",
    b"BLP": "BLP", b"DDS ": "DDS", b"\0\0\0\x0cjP  ": "JPEG 2000", b"\xff\x4f\xff\x51": "JPEG 2000",
    b"\xff\x0a": "JPEG XL", b"\0\0\0\x0cJXL ": "JPEG XL", b"\0\0\1\0": "an icon (ICO)", b"qoif": "QOI",
    b"version https://git-lfs": "a pointer of Git LFS, not the file that it stands for", b"\x93NUMPY": "a NumPy array",
    b"PK\3\4": "a zip archive", b"\x1f\x8b": "gzip",
}  # fmt: skip
BRANDS = {b"avif": "AVIF", b"avis": "AVIF"} | dict.fromkeys((b"heic", b"heix", b"hevc", b"mif1", b"msf1"), "HEIC")
TEXTS = {b"<!doctype html": "an HTML page", b"<html": "an HTML page", b"<svg": "SVG", b"<?xml": "XML, such as SVG",
         b"{": "JSON"}  # fmt: skip


class CorruptImageError(UserError):
    """An image that cannot be decoded, or that does not say how bright its pixels are."""


def check_header(listing: Listing, index: int) -> None:
    """Reads the header of an image, not its pixels. Raises UserError if that fails."""
    try:
        with _open(listing, index):
            pass
    except MemoryError:
        raise
    except Exception as error:  # each of Pillow's decoders has errors of its own for bytes of nonsense
        raise _refusal(listing, index, error) from None


def decode(listing: Listing, index: int, side: int) -> NDArray[np.uint8]:
    """The image as uint8 [side, side, 3], upright: its shorter edge is resized to `side` (bilinear), then the middle is cut
    out. torchvision's Resize and CenterCrop do the same, and transformers' processors with shortest_edge and crop_size.
    Raises UserError."""
    try:
        with _open(listing, index) as file:
            return np.asarray(_square(file, listing, index, side))
    except MemoryError:
        raise
    except Exception as error:  # as above
        raise _refusal(listing, index, error) from None


def _open(listing: Listing, index: int) -> ImageFile.ImageFile:
    image = Image.open(listing.open(index), formats=FORMATS)
    try:
        check_mode(image)
    except UnusableImageError:
        image.close()
        raise
    return image


def _square(file: ImageFile.ImageFile, listing: Listing, index: int, side: int) -> Image.Image:
    deep, (width, height) = has_16_bits(file), file.size
    drafted = file.draft(None, (MARGIN * side, MARGIN * side))
    shrunk = round(width / drafted[1][2]) if drafted else 1
    file.load()
    if file.format == "TIFF":
        width, height = file.size  # loading has turned it
    image = to_rgb(file, deep, lambda: _head(listing, index, PNG_HEAD_BYTES))
    orientation = 1
    if not EXIF_KEYS.isdisjoint(file.info):
        with contextlib.suppress(Exception):  # damaged EXIF, as in some images of ImageNet: the image itself is whole
            orientation = file.getexif().get(ORIENTATION, 1)
    mirrored = orientation in (MIRRORED_X if width >= height else MIRRORED_Y)
    begin, end = _middle(min(width, height), max(width, height), side, mirrored)
    # 257 pixels at an eighth are 32.125, of which Pillow makes 33: the last row counts in part.
    begin, end, edge = begin / shrunk, end / shrunk, min(width, height) / shrunk
    box = (begin, 0.0, end, edge) if width >= height else (0.0, begin, edge, end)
    square = image.resize((side, side), Image.Resampling.BILINEAR, box)
    return square.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else square


def _middle(short: int, long: int, side: int, mirrored: bool) -> tuple[float, float]:
    """Which part of the longer axis becomes the square. `mirrored`: the image is turned later, so that this axis runs
    backwards; an odd number of pixels to cut off is not shared evenly."""
    resized = int(side * long / short)
    first = (resized - side) // 2
    if mirrored:
        first = resized - side - first
    return first * long / resized, min((first + side) * long / resized, long)


def _head(listing: Listing, index: int, size: int) -> bytes:
    source = listing.open(index)
    with open(source, "rb") if isinstance(source, str) else source as file:
        return file.read(size)


def _refusal(listing: Listing, index: int, error: Exception) -> UserError:
    name = listing.name(index)
    where = f"channel '{listing.channel}': {name}"
    if isinstance(error, FileNotFoundError):
        if os.path.islink(name):
            return UserError(
                f"{where} is a link to {os.readlink(name)}, which is missing on this host; allowed: links to files that every "
                "host has; fix: copy the files themselves into the channel"
            )
        return UserError(
            f"{where} is missing on this host, but rank 0's host has it; allowed: the same files on every host; "
            "fix: use S3DataDistributionType FullyReplicated"
        )
    fix = "replace or remove the file, or leave it out by --skip-bad-samples"
    if isinstance(error, UnusableImageError):
        what, fix = str(error), f"{error.fix}, or leave it out by --skip-bad-samples"
    elif isinstance(error, OSError) and error.errno is not None:
        what = f"cannot be read: {error.strerror}"
    else:
        reason = re.sub(r"<_io\.BytesIO object at \w+>", "the file", str(error).replace(repr(name), "the file"))
        what = f"is a corrupt image: {reason or type(error).__name__}"
        if isinstance(error, UnidentifiedImageError):
            with contextlib.suppress(OSError):
                found = foreign_format(_head(listing, index, HEAD_BYTES))
                what = f"is a corrupt image: its {f'content is {found}' if found else 'header is damaged or unknown'}"
    return CorruptImageError(f"{where} {what}; allowed: {ALLOWED}; fix: {fix}")


def foreign_format(head: bytes) -> str | None:
    """What a file with these first bytes is; None if that is unknown, or a damaged image of a format that is allowed."""
    if not head:
        return "empty"
    if not any(head):
        return "full of zeros"
    if head[4:8] == b"ftyp":
        return BRANDS.get(head[8:12], "a film or an image of a film's format (MP4)")
    if head[:4] == b"RIFF":
        return None if head[8:12] == b"WEBP" else "RIFF, such as AVI or WAV"
    found = (name for start, name in BEGINNINGS.items() if head.startswith(start))
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return next(found, None) or next((name for start, name in TEXTS.items() if text.startswith(start)), None)
