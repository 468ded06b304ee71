"""Lists the images of class folders, and opens one of them. Both programs of this example read images with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from PIL import Image, ImageOps

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
BAD_INPUT = 64  # exit code


def refuse(message: str) -> NoReturn:
    """Ends the program with one line on stderr."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(BAD_INPUT)


def images_of(folder: Path) -> dict[str, list[Path]]:
    """The images of each class, sorted by their paths. The folders in `folder` are the classes.

    Hidden files and folders, and `__MACOSX`, are passed over: macOS puts them into ZIP files. A class folder without an image
    ends the program: S3 keeps no empty folder, so the class would be lost without a word.
    """
    if not folder.is_dir():
        refuse(f"{folder} is no folder; fix: give the job an input with class folders")
    classes = {path.name: _images(path) for path in sorted(folder.iterdir()) if path.is_dir() and _counts(path.name)}
    if not classes:
        refuse(f"{folder} has no class folders; allowed: CLASS/*.png and the like; fix: pack folders such as horses/")
    for name, images in classes.items():
        if not images:
            refuse(
                f"class folder {name} of {folder} holds no image; allowed: {', '.join(SUFFIXES)}; fix: fill or remove it"
            )
    return classes


def _counts(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _images(folder: Path) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = filter(_counts, folders)
        found += [Path(parent, name) for name in files if _counts(name) and name.lower().endswith(SUFFIXES)]
    return sorted(found)


def open_rgb(path: Path) -> Image.Image:
    """The image, upright and in RGB. What is transparent becomes white."""
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            if not upright.has_transparency_data:
                return upright.convert("RGB")
            white = Image.new("RGBA", upright.size, "white")
            return Image.alpha_composite(white, upright.convert("RGBA")).convert("RGB")
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ) as error:  # Pillow raises all of them on damage
        refuse(f"{path} cannot be read as an image: {error}; fix: replace or remove it")
