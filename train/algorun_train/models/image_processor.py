"""How a model of a folder wants its images. The folder's own image processor is not imitated but measured: transformers runs
it on a few images of one colour, and what comes out says how colours become numbers."""

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from algorun_train.common.errors import UserError

from .folder_files import COLOUR, Json

PROCESSOR = "preprocessor_config.json"
PROCESSORS = (PROCESSOR, "processor_config.json")  # the second holds the first as image_processor
RGB, BGR = (0, 1, 2), (2, 1, 0)
SQUARES = (64, 96)  # sides of the images that show whether the processor has a size of its own
PRIMARIES = ((0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255))
OTHERS = ((255, 255, 255), (128, 128, 128), (17, 101, 203), (230, 60, 9), (2, 250, 31))
TOLERANCE = 1e-4  # of the largest number that a channel can become: a fortieth of one of the 256 levels
# The first does just what a job does: resize, centre crop, rescale, normalise. The other is the only one with code for PIL
# that turns one image into BGR; it does not normalise.
PLAIN, FLIPPING = "BitImageProcessor", "MobileViTImageProcessor"


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How a model wants its images: `side` x `side` pixels; channel i is channel `order[i]` of RGB, each in 0..1, minus
    `mean[i]`, divided by `std[i]`. `processor` says so in the words of transformers: it is written beside the trained model."""

    side: int
    order: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    processor: Json


def read_image_input(where: str, path: Path, config: Mapping[str, Any]) -> ImageInput:
    """Measures the processor beside a model. Raises UserError if there is none, or if a job cannot make the same pixels."""
    if not any((path / name).exists() for name in PROCESSORS):
        raise UserError(
            f"{where}: no {PROCESSOR}, so size and colours of the images are unknown; allowed: the model's image "
            "processor beside it; fix: save the processor with save_pretrained to the same folder"
        )
    if config.get("num_channels", 3) != 3:
        raise UserError(
            f"{where}: config.json has num_channels {config['num_channels']!r}; allowed: 3, since images are read as RGB; "
            "fix: give a model of colour images"
        )
    try:
        processor = _load(path)
    except Exception as error:  # transformers has no one class for what it refuses
        words = COLOUR.sub("", str(error)).replace(str(path), "the folder").strip()
        raise UserError(
            f"{where}: the image processor cannot be read: {words.partition(chr(10))[0][:300] or type(error).__name__}; "
            "allowed: processors of transformers whose libraries are installed; fix: save it again, complete and "
            "unchanged, or save another one, such as ViTImageProcessor"
        ) from None
    try:
        return _measure(processor, config.get("image_size"))
    except _Unfit as error:
        raise UserError(
            f"{where}: image processor {type(processor).__name__} {error}; allowed: processors that make one square image "
            "of three channels, each of them a channel of the image times a number plus a number; fix: save another "
            "processor, such as ViTImageProcessor with the model's size, image_mean and image_std"
        ) from None


class _Unfit(Exception):
    """Why a job cannot do what a processor does."""


def _load(path: Path) -> Any:  # Any: a class of transformers, which gives its processors no common type
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def _measure(processor: Any, config_side: object) -> ImageInput:  # Any: see `_load`
    side = _side(processor, config_side)
    black, *primaries = (_colour(processor, side, colour) for colour in PRIMARIES)
    matrix = np.stack(primaries, 1) - black[:, None]  # row: a channel of the model; column: one of the image
    order = tuple(int(each) for each in np.abs(matrix).argmax(1))
    largest = np.abs(matrix).max(1)
    rest = matrix.copy()
    rest[range(3), order] = 0
    if np.any(np.abs(rest) > TOLERANCE * largest.max()) or sorted(order) != [0, 1, 2] or np.any(largest == 0):
        raise _Unfit("mixes red, green and blue")
    scale = matrix[range(3), order]
    std = _tidy(1 / scale, getattr(processor, "image_std", None))
    mean = _tidy(-black / scale, getattr(processor, "image_mean", None))
    for colour in OTHERS:
        wanted = (np.array(colour)[list(order)] / 255 - mean) / std
        if np.any(np.abs(_colour(processor, side, colour) - wanted) > TOLERANCE * np.abs(scale).max()):
            raise _Unfit("changes colours in another way than by a number to multiply with and a number to add")
    return ImageInput(side, order, mean, std, _describe(processor, side, order, mean, std))


def _side(processor: Any, config_side: object) -> int:  # Any: see `_load`
    """The side of what the processor makes of squares. `config_side`: what config.json says, if it leaves their size alone."""
    sides = {_run(processor, _flat(side, (0, 0, 0))).shape[1:] for side in SQUARES}
    if len(sides) > 1 and type(config_side) is int and 0 < config_side < 10_000:
        sides = {_run(processor, _flat(config_side, (0, 0, 0))).shape[1:]}
    (height, width) = sides.pop()
    if sides or height != width:
        found = " and ".join(f"{h} x {w}" for h, w in [(height, width), *sides])
        raise _Unfit(f"makes images of {found} pixels of square ones, so the model's size is unknown")
    return int(height)


def _flat(side: int, colour: Sequence[int]) -> Image.Image:
    return Image.new("RGB", (side, side), tuple(colour))


def _colour(processor: Any, side: int, colour: Sequence[int]) -> NDArray[np.float64]:  # Any: see `_load`
    """What becomes of a colour, [3]: looked up in the middle, since some processors leave a border."""
    edge = side // 4
    middle = _run(processor, _flat(side, colour))[:, edge : side - edge, edge : side - edge].reshape(3, -1)
    if not np.isfinite(middle).all() or np.any(np.ptp(middle, 1) > TOLERANCE * max(float(np.abs(middle).max()), 1e-3)):
        raise _Unfit("makes several colours of an image of one")
    return np.asarray(middle.mean(1), np.float64)


def _run(processor: Any, image: Image.Image) -> NDArray[np.float64]:  # Any: see `_load`
    """What the model sees of an image, [3, height, width]."""
    try:
        with np.errstate(all="ignore"):  # a division by zero shows in what is made
            made = dict(processor(images=image, return_tensors="pt"))
    except Exception as error:  # each processor has its own way to fail
        first = str(error).strip().partition("\n")[0][:150] or type(error).__name__
        raise _Unfit(f"fails on a square image: {first}") from None
    values = made.pop("pixel_values", None)
    if made:
        raise _Unfit(f"makes {', '.join(sorted(made))} besides pixel_values")
    shape = list(values.shape) if isinstance(values, torch.Tensor) else None
    if not isinstance(values, torch.Tensor) or values.dim() != 4 or shape is None or shape[:2] != [1, 3]:
        raise _Unfit(f"makes pixel_values of shape {shape} of one image")
    return values[0].double().numpy()


def _tidy(measured: NDArray[np.float64], own: object) -> tuple[float, ...]:
    """The processor's own three numbers if they are those, else six digits: what float32 leaves of a measured number."""
    with contextlib.suppress(TypeError, ValueError):
        given = np.array(own, np.float64)
        if given.shape == (3,) and np.allclose(given, measured, rtol=1e-5, atol=1e-6):
            return tuple(given.tolist())
    return tuple(float(f"{each:.6g}") if abs(each) > 1e-6 else 0.0 for each in measured)


def _describe(
    processor: Any, side: int, order: tuple[int, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> Json:  # Any: see `_load`
    """The preprocessor_config.json that makes of an image what a job makes of it: the shorter edge is resized to `side`
    (bilinear), the middle is cut out, colours become what has been measured. It keeps the processor's class if that class
    does it, in the code that is installed here."""
    geometry = {"do_convert_rgb": True, "do_resize": True, "size": {"shortest_edge": side}, "resample": 2,
                "do_center_crop": True, "crop_size": {"height": side, "width": side}, "do_rescale": True}  # fmt: skip
    if order == RGB:
        colours = {"rescale_factor": 1 / 255, "do_normalize": True, "image_mean": list(mean), "image_std": list(std)}
        plain = {"image_processor_type": PLAIN} | geometry | colours
        own = plain | {"image_processor_type": processor.to_dict().get("image_processor_type")}
        wide = Image.fromarray(np.random.default_rng(1).integers(0, 256, (side + 7, 2 * side + 5, 3), np.uint8))
        images = (_noise(side), wide, wide.transpose(Image.Transpose.ROTATE_90))
        expected = [_run(_made(plain), image) for image in images]
        return own if _equal(own, images, expected) else plain
    if order == BGR and not any(mean) and len(set(std)) == 1:
        flipped = {"rescale_factor": 1 / 255 / std[0], "do_normalize": False, "do_flip_channel_order": True}
        return {"image_processor_type": FLIPPING} | geometry | flipped
    raise _Unfit(
        f"gives the channels in the order {', '.join('RGB'[each] for each in order)} and normalises them, which no "
        "processor can say that resizes and crops as a job does"
    )


def _noise(side: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8))


def _made(description: Json) -> Any:  # Any: see `_load`
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, PROCESSOR).write_text(json.dumps(description), encoding="utf-8")
        return _load(Path(folder))


def _equal(description: Json, images: Sequence[Image.Image], expected: Sequence[NDArray[np.float64]]) -> bool:
    try:
        processor = _made(description)
        return all(np.allclose(_run(processor, i), e, atol=1e-5) for i, e in zip(images, expected, strict=True))
    except Exception:  # a class of other options: transformers has no one error for them
        return False
