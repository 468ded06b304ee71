"""Reads an archive of images from the web, and writes it as several tar files that hosts unpack side by side.

The archive has folders train/CLASS/ and val/CLASS/ with images, as PyTorch's ImageFolder reads them, at any depth. It is
never on the disk as a whole. An address may also be file:///PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tarfile
import urllib.request
from pathlib import Path

SPLITS = ("train", "val")
TIMEOUT_S = 60


def name_of(member: str) -> str:
    """The name from `train/` or `val/` on: `imagenette2/train/n01440764/a.JPEG` becomes `train/n01440764/a.JPEG`.

    "" for what is no image of a class.
    """
    parts = member.split("/")
    for at, part in enumerate(parts):
        if part in SPLITS and len(parts) == at + 3 and ".." not in parts:
            return "/".join(parts[at:])
    return ""


def repack(url: str, folder: Path, parts: int, every: int) -> int:
    """Writes `folder`/part-NN.tar, with the images in turn: one of `every`, from the first on. Returns their number."""
    seen = count = 0
    with contextlib.ExitStack() as files:
        archives = [files.enter_context(tarfile.open(folder / f"part-{n:02d}.tar", "w")) for n in range(parts)]
        source = files.enter_context(urllib.request.urlopen(url, timeout=TIMEOUT_S))
        given = files.enter_context(tarfile.open(fileobj=source, mode="r|*"))
        for member in given:
            name = name_of(member.name)
            if not (member.isfile() and name):
                continue
            if seen % every == 0:
                member.name = name
                archives[count % parts].addfile(member, given.extractfile(member))
                count += 1
                if count % 1000 == 0:
                    print(f"{count} images", flush=True)
            seen += 1
    return count


def main() -> int:
    """Returns 1 if the archive holds no images as they are expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="a tar file, compressed or not")
    parser.add_argument("--parts", type=int, default=8, help="number of tar files (default: %(default)s)")
    parser.add_argument("--every", type=int, default=1, help="take one image of so many (default: all)")
    options = parser.parse_args()
    if options.parts < 1 or options.every < 1:
        parser.error("--parts and --every are 1 or more")
    folder = Path(os.environ["SSM_OUTPUT"], "images")
    folder.mkdir(parents=True, exist_ok=True)
    count = repack(options.url, folder, options.parts, options.every)
    if not count:
        print(f"error: {options.url} holds no images in train/CLASS/ or val/CLASS/", file=sys.stderr)
        return 1
    print(f"{count} images in {options.parts} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
