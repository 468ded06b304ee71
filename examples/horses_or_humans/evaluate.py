"""Says how many validation images a trained model gets right, with transformers alone: nothing of the training takes part.

It reads the model from the input `model` and class folders from the input `validation`. It prints the accuracy, and writes
`evaluation.json` with what was taken for what.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from class_folders import images_of, open_rgb, refuse
from transformers import AutoImageProcessor, AutoModelForImageClassification

BATCH = 32  # images at once
SHOWN = 10  # wrong answers that are printed


@torch.inference_mode()
def answers(folder: Path, paths: list[Path]) -> Iterator[str]:
    """The class that the model of `folder` sees in each image, in their order."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    processor = AutoImageProcessor.from_pretrained(folder)
    model = AutoModelForImageClassification.from_pretrained(folder).to(device).eval()
    for begin in range(0, len(paths), BATCH):
        images = [open_rgb(path) for path in paths[begin : begin + BATCH]]
        pixels = processor(images, return_tensors="pt").to(device)
        for label in model(**pixels).logits.argmax(dim=1).tolist():
            yield model.config.id2label[label]


def classes_of(folder: Path) -> set[str]:
    """The classes that the model of `folder` knows."""
    return set(json.loads((folder / "config.json").read_text(encoding="utf-8"))["id2label"].values())


def main() -> None:
    """Raises SystemExit: 64 for images that the model cannot be asked about."""
    model, validation = Path(os.environ["SM_CHANNEL_MODEL"]), Path(os.environ["SM_CHANNEL_VALIDATION"])
    classes = images_of(validation)
    if classes.keys() != (known := classes_of(model)):
        refuse(
            f"{validation} has the classes {', '.join(sorted(classes))}, the model {', '.join(sorted(known))}; "
            "allowed: the same; fix: validate with the classes of the training"
        )
    asked = [(label, path) for label, paths in classes.items() for path in paths]
    answered = list(answers(model, [path for _, path in asked]))
    told = Counter((label, answer) for (label, _), answer in zip(asked, answered, strict=True))
    right = sum(count for (label, answer), count in told.items() if label == answer)
    wrong = [(path, answer) for (label, path), answer in zip(asked, answered, strict=True) if label != answer]
    for path, answer in wrong[:SHOWN]:
        print(f"wrong: {path.relative_to(validation)} is taken for {answer}")
    for label, paths in classes.items():
        print(f"{label}: {told[label, label]} of {len(paths)} right")
    table = {label: {answer: told[label, answer] for answer in classes} for label in classes}
    accuracy = right / len(asked)
    Path(os.environ["SM_OUTPUT_DATA_DIR"], "evaluation.json").write_text(
        json.dumps({"accuracy": accuracy, "images": len(asked), "answers": table}, indent=2) + "\n", encoding="utf-8"
    )
    print(f"evaluation of {len(asked)} images, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
