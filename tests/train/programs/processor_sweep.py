"""Checks every image processor that transformers has for torchvision, as a process of its own: transformers decides when it is
imported whether torchvision is there. Prints a line of JSON: the classes that a job takes, and those that it refuses, with why.

    processor_sweep.py FOLDER
"""

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.train.parallel.model_zoo import APART, declare_torchvision

declare_torchvision()
sys.path.append(str(APART))

import torchvision  # noqa: E402, F401

from algorun_train.models.folder_model import prepare_transformers  # noqa: E402
from tests.train import processor_checks  # noqa: E402

warnings.simplefilter("ignore")
prepare_transformers()
taken: dict[str, str] = {}
refused: dict[str, str] = {}
for name in processor_checks.classes("torchvision"):
    for number, values in enumerate(
        ({}, {"rescale_factor": 1 / 127.5, "do_normalize": False}, {"rescale_offset": True})
    ):
        processor = processor_checks.made(name, **values)
        if processor is None:
            continue
        folder = Path(sys.argv[1]) / f"{name}-{number}"
        processor.save_pretrained(folder)
        found = processor_checks.check(folder, {}, ("torchvision", "pil"))
        if isinstance(found, str):
            refused[name] = found
        else:
            taken[name] = str(found.processor["image_processor_type"])
print(json.dumps({"taken": taken, "refused": refused}))
