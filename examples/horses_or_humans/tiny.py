"""Writes the folder `tiny`: this example with little ZIP files, and with a little ViT of random weights.

Nothing is downloaded. The pictures are drawn here: a horse is wide and brown, a human is tall. Of the job file only the
words in `CHANGES` differ, because weights that have learned nothing yet need larger steps.
"""

from __future__ import annotations

import argparse
import io
import random
import shutil
import zipfile
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

HERE = Path(__file__).resolve().parent
PROGRAMS = ("class_folders.py", "enlarge.py", "evaluate.py")
SIDE = 48  # pixels
TRAIN, VALIDATION = 16, 12  # images of each class
CHANGES = (
    ('"--epochs", "3", "--lr", "0.00005", "--batch-size", "32"', '"--epochs", "6", "--lr", "0.003", "--batch-size", "8"'),
    ("per_gpu = true", "slots = 2"),
)  # fmt: skip


def picture(label: str, draw: random.Random) -> Image.Image:
    """A horse or a human, somewhere in a landscape."""
    image = Image.new("RGB", (SIDE, SIDE), (draw.randint(120, 200), draw.randint(170, 220), draw.randint(120, 220)))
    pen, x, y = ImageDraw.Draw(image), draw.randint(18, 30), draw.randint(18, 30)
    if label == "horses":
        brown = (draw.randint(90, 140), draw.randint(50, 80), draw.randint(20, 50))
        pen.ellipse((x - 16, y - 6, x + 12, y + 6), fill=brown)
        pen.polygon([(x + 8, y), (x + 14, y - 12), (x + 18, y - 8), (x + 12, y + 4)], fill=brown)
        for leg in (-12, -6, 4, 9):
            pen.line((x + leg, y + 4, x + leg, y + 16), fill=brown, width=2)
    else:
        skin, coat = (225, draw.randint(170, 200), 160), tuple(draw.randint(20, 230) for _ in range(3))
        pen.ellipse((x - 4, y - 16, x + 4, y - 8), fill=skin)
        pen.rectangle((x - 5, y - 8, x + 5, y + 6), fill=coat)
        for leg in (-3, 3):
            pen.line((x + leg, y + 6, x + leg, y + 18), fill=(40, 40, 60), width=3)
    return image


def write_zip(path: Path, images: int, seed: int) -> None:
    """Class folders with this number of images each, as the original ZIP files have them."""
    draw = random.Random(seed)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for label in ("horses", "humans"):
            packed.writestr(f"{label}/", "")
            for number in range(images):
                data = io.BytesIO()
                picture(label, draw).save(data, "PNG")
                packed.writestr(f"{label}/{label[:-1]}{number:02d}.png", data.getvalue())


def write_vit(folder: Path) -> None:
    """A ViT without a head, as one is published after its training on other images."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8
    )
    ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)


def main() -> None:
    """Writes the folder anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=HERE / "tiny", help="the folder (default: %(default)s)")
    folder = parser.parse_args().to
    (folder / "data").mkdir(parents=True, exist_ok=True)
    write_zip(folder / "data" / "horse-or-human.zip", TRAIN, seed=1)
    write_zip(folder / "data" / "validation-horse-or-human.zip", VALIDATION, seed=2)
    write_vit(folder / "vit")
    for name in (*PROGRAMS, ".gitignore"):
        shutil.copyfile(HERE / name, folder / name)
    text = (HERE / "algorun.toml").read_text(encoding="utf-8")
    for before, after in CHANGES:
        if text.count(before) != 1:
            raise SystemExit(f"error: algorun.toml has {before!r} {text.count(before)} times; allowed: once")
        text = text.replace(before, after)
    (folder / "algorun.toml").write_text(text, encoding="utf-8")
    print(f"{folder}: {2 * TRAIN} images to train with, {2 * VALIDATION} to validate with, a ViT of 32 channels")


if __name__ == "__main__":
    main()
