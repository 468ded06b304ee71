"""How a model of a folder wants its images."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorun_train.common.errors import UserError

from .folder_files import read_json

PROCESSORS = ("preprocessor_config.json", "processor_config.json")  # the second holds the first as image_processor


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How a model wants its images: `side` x `side` pixels, each channel of 0..1 minus `mean`, divided by `std`."""

    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def read_image_input(where: str, path: Path, config: Mapping[str, Any]) -> ImageInput:
    """Reads the processor beside a model. Raises UserError if it cannot be imitated."""
    name = next((name for name in PROCESSORS if (path / name).exists()), None)
    if name is None:
        raise UserError(
            f"{where}: no {PROCESSORS[0]}, so size and colours of the images are unknown; allowed: the model's image "
            "processor beside it; fix: save the processor with save_pretrained to the same folder"
        )
    found = read_json(where, path / name, "an image processor")
    found = found.get("image_processor", found)
    side = _side(found)
    mean, std = ((_numbers(found.get(key)) if found.get("do_normalize", True) else default)
                 for key, default in (("image_mean", (0.0,) * 3), ("image_std", (1.0,) * 3)))  # fmt: skip
    if side is None or len(mean) != 3 or len(std) != 3 or 0 in std or config.get("num_channels", 3) != 3:
        raise UserError(
            f"{where}: {name} has size {found.get('size')!r}, image_mean {found.get('image_mean')!r}, image_std "
            f"{found.get('image_std')!r}; allowed: a square size and three channels; fix: save a processor of that kind"
        )
    return ImageInput(side, mean, std)


def _side(processor: Mapping[str, Any]) -> int | None:
    """The side of the square that the model sees, None if it sees none."""
    size = processor.get("crop_size") if processor.get("do_center_crop") else processor.get("size")
    if isinstance(size, Mapping):
        sides = {size[key] for key in ("height", "width", "shortest_edge") if key in size}
        size = sides.pop() if len(sides) == 1 else None
    return size if type(size) is int and size > 0 else None


def _numbers(value: object) -> tuple[float, ...]:
    if isinstance(value, list) and all(type(number) in (int, float) for number in value):
        return tuple(float(number) for number in value)
    return ()
