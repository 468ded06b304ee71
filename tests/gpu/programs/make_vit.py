"""Makes FOLDER/model, a ViT of random weights as a Hugging Face folder, and FOLDER/train and FOLDER/val, JPEG files of it.

A class is a colour, behind noise: a few steps suffice to learn it. Images are half as large again as the model's.
"""

import argparse
import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

COLOURS = {"blue": (60, 60, 180), "green": (60, 180, 60), "red": (180, 60, 60), "white": (180, 180, 180)}
NOISE = 40.0
COARSE = 8  # pixels of the noise's squares; JPEG would flatten finer ones


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("width", "inner", "depth", "heads", "side", "patch", "images", "held-out"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=args.width,
        intermediate_size=args.inner,
        num_hidden_layers=args.depth,
        num_attention_heads=args.heads,
        image_size=args.side,
        patch_size=args.patch,
        num_labels=len(COLOURS),
    )
    model = ViTForImageClassification(config)
    model.save_pretrained(args.folder / "model")
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": args.side, "width": args.side},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (args.folder / "model" / "preprocessor_config.json").write_text(json.dumps(processor))
    draw = np.random.RandomState(0)
    for split, count in (("train", args.images), ("val", args.held_out)):
        for number in range(count):
            name = sorted(COLOURS)[number % len(COLOURS)]
            folder = args.folder / split / name
            folder.mkdir(parents=True, exist_ok=True)
            picture(COLOURS[name], args.side * 3 // 2, draw).save(folder / f"{number}.jpg", quality=90)
    print("made: " + json.dumps({"weights": sum(parameter.numel() for parameter in model.parameters())}))


def picture(colour: tuple[int, int, int], side: int, draw: np.random.RandomState) -> Image.Image:
    squares = -(-side // COARSE)
    noise = draw.normal(0, NOISE, (squares, squares, 3)).repeat(COARSE, 0).repeat(COARSE, 1)[:side, :side]
    return Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8))


if __name__ == "__main__":
    main()
