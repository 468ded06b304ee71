"""Makes several images of each training image: flipped, shifted, cropped, with other colours.

It reads class folders from the input `original` and writes class folders to the output `train`: each image as it is, and
`--copies` changed ones beside it. A copy follows from the seed, the image's path and the copy's number alone, so that any
number of hosts makes the same images. Hosts that have the same files divide them by rank; with `shard` each takes all of
its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path

from class_folders import images_of, open_rgb, refuse
from PIL import Image, ImageEnhance, ImageOps

INPUT, OUTPUT = "original", "train"
SMALLEST_CROP = 0.8  # of an edge
LARGEST_SHIFT = 0.1  # of an edge
COLOURS = (0.8, 1.2)  # factors of brightness, contrast and saturation
JPEG_QUALITY = 95


def changed(image: Image.Image, draw: random.Random) -> Image.Image:
    """An image of the same size. Where it was shifted away from, it has its mean colour."""
    if draw.random() < 0.5:
        image = ImageOps.mirror(image)
    width, height = image.size
    share = draw.uniform(SMALLEST_CROP, 1)
    left, top = (1 - share) * width * draw.random(), (1 - share) * height * draw.random()
    image = image.resize(
        image.size, Image.Resampling.BILINEAR, box=(left, top, left + share * width, top + share * height)
    )
    mean = image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    shifted = Image.new("RGB", image.size, mean)
    right, down = (round(draw.uniform(-LARGEST_SHIFT, LARGEST_SHIFT) * edge) for edge in image.size)
    shifted.paste(image, (right, down))
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        shifted = enhance(shifted).enhance(draw.uniform(*COLOURS))
    return shifted


def has_other_files_than_other_hosts(channel: str) -> bool:
    """True if SageMaker divides the objects of this input between the hosts (`shard`)."""
    described = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"), "config", "processingjobconfig.json")
    if not described.exists():
        return False
    inputs = json.loads(described.read_text(encoding="utf-8")).get("ProcessingInputs", [])
    kinds = [each["S3Input"].get("S3DataDistributionType") for each in inputs if each["InputName"] == channel]
    return "ShardedByS3Key" in kinds


def own_share(images: list[tuple[str, Path]], rank: int, ranks: int) -> list[tuple[str, Path]]:
    """The images that this rank enlarges."""
    if not has_other_files_than_other_hosts(INPUT):
        return images[rank::ranks]
    local_rank, local_ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return images[local_rank::local_ranks]


def name_of_copy(name: str, copy: int) -> str:
    """The name beside the image's own. Its suffix stays in it: `1.png` and `1.jpg` have different copies."""
    return f"{name}-{copy}.jpg"


def main() -> None:
    """Raises SystemExit: 64 for input that cannot be enlarged."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=4, help="changed images beside each one (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="other seeds make other images (default: %(default)s)")
    options = parser.parse_args()
    if options.copies < 1:
        parser.error("--copies is 1 or more")
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    source, target = Path(os.environ[f"SM_CHANNEL_{INPUT.upper()}"]), Path(os.environ["SSM_OUTPUT"], OUTPUT)
    classes = images_of(source)
    every = [(name, path) for name, paths in classes.items() for path in paths]
    names = {path.relative_to(source).as_posix() for _, path in every}
    mine, made = own_share(every, rank, ranks), Counter[str]()
    for label, path in mine:
        name = path.relative_to(source).as_posix()
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / name)
        image = open_rgb(path)
        for copy in range(1, options.copies + 1):
            other = name_of_copy(name, copy)
            if other in names:
                refuse(f"{source} has {other}, the name of a copy of {name}; fix: rename it")
            draw = random.Random(f"{options.seed} {name} {copy}")
            changed(image, draw).save(target / other, quality=JPEG_QUALITY)
        made[label] += 1 + options.copies
    listed = ", ".join(f"{label} {count}" for label, count in made.items()) or "none"
    print(
        f"rank {rank} of {ranks}: {len(mine)} of {len(every)} images became {made.total()} (seed {options.seed}): {listed}"
    )


if __name__ == "__main__":
    main()
