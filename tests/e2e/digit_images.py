"""Writes scikit-learn's handwritten digits as an image folder: PNG and JPEG files of mixed sizes and colour modes.

    python digit_images.py FOLDER

FOLDER/train/<digit>/ and FOLDER/validation/<digit>/, 2,300 files. A digit is in one of the two only: the split comes
before the drawing, which makes some training digits twice at other sizes.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

TWICE = 503
VALIDATION = 360
SIDES = (24, 32, 48, 64, 96)


def draw(pixels: np.ndarray, number: int) -> Image.Image:
    """One digit of 8 x 8 levels 0..16, enlarged to a size that depends on its number; not all are square or grey."""
    side = SIDES[number % len(SIDES)]
    width = side + (number % 3) * 4
    image = Image.fromarray((pixels * 255 / 16).astype(np.uint8))
    image = image.resize((width, side), Image.Resampling.BICUBIC)
    return image.convert(("L", "RGB")[number % 2])


def main(folder: Path) -> int:
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8)
    order = np.random.default_rng(0).permutation(len(labels))
    held_out, training = order[:VALIDATION], order[VALIDATION:]
    jobs = [("validation", index) for index in held_out]
    jobs += [("train", index) for index in (*training, *training[:TWICE])]
    for number, (split, index) in enumerate(jobs):
        suffix = ("png", "jpg", "jpeg")[number % 3]
        path = folder / split / str(labels[index]) / f"{number:04d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(images[index], number).save(path)
    print(f"{len(jobs)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
