"""An image processor in a folder, beside what a job makes of images and what it writes: the same pixels, or a refusal."""

import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from algorun_train.common.errors import UserError
from algorun_train.data.image_decoding import decode
from algorun_train.data.listing import Listing
from algorun_train.models.folder_model import ImageClassifier
from algorun_train.models.image_processor import ImageInput, read_image_input

LEVELS = 1.01  # of 256: ours resizes and crops in one step, Pillow and torchvision in two
MEAN = 0.4  # of 256, over an image: where one is enlarged, halves are rounded in either way; torchvision's weights have 16 bits


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def seen(images: ImageInput, path: Path) -> np.ndarray:
    """What a job's model sees of a file, [3, side, side]."""
    pixels = decode(Listing("train", str(path.parent), ("a",), (path.name,), (0,)), 0, images.side)
    batch = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].to(torch.float32).mul_(2 / 255).sub_(1)
    return ImageClassifier(torch.nn.Identity(), images).pixel_values(batch)[0].numpy()


def check(folder: Path, config: dict[str, object], backends: Sequence[str] = ("pil",)) -> ImageInput | str:
    """Reads the processor in `folder`. Returns why it is refused, or asserts that three agree: the processor without resizing,
    on images of the model's size; the job; and what the job writes, on images of any size, with each of the backends."""
    from transformers import AutoImageProcessor

    try:
        images = read_image_input("option --model: here", folder, config)
    except UserError as error:
        for part in ("option --model: here: ", "; allowed: ", "; fix: "):
            assert part in str(error), str(error)  # noqa: PT017
        return str(error)
    size = 1 / 255 / min(abs(each) for each in images.std)  # what one level of 256 becomes, at most
    own = AutoImageProcessor.from_pretrained(folder)
    for name, made in _without_geometry(own, noise(images.side, images.side)):
        noise(images.side, images.side).save(folder / "square.png")
        assert np.abs(seen(images, folder / "square.png") - made).max() < 0.01 * size, (name, images)
    artifact = folder / "artifact"
    artifact.mkdir(exist_ok=True)
    (artifact / "preprocessor_config.json").write_text(json.dumps(images.processor))
    side = images.side
    for number, shape in enumerate([(side, side), (2 * side + 7, side + 3), (side // 2 + 5, side), (37, 101)]):
        noise(*shape, seed=number).save(folder / "image.png")
        for backend in backends:
            written = AutoImageProcessor.from_pretrained(artifact, backend=backend)
            with Image.open(folder / "image.png") as image:
                made = written(image, return_tensors="pt")["pixel_values"][0].numpy()
            difference = np.abs(seen(images, folder / "image.png") - made) / size
            assert difference.max() < LEVELS, (backend, shape, difference.max(), images)
            assert difference.mean() < MEAN, (backend, shape, difference.mean(), images)
    return images


def _without_geometry(processor: Any, image: Image.Image) -> Iterator[tuple[str, np.ndarray]]:
    """What the processor makes of an image of the model's own size, if it can leave the size alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = processor(image, return_tensors="pt", do_resize=False, do_center_crop=False)["pixel_values"]
    except Exception:  # classes that always resize
        return
    if tuple(made.shape) == (1, 3, image.height, image.width):
        yield type(processor).__name__, made[0].numpy()


def classes(backend: str) -> list[str]:
    """The image processors of transformers whose code is for "pil" or for "torchvision"."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as NAMES

    return sorted({str(name) for entry in NAMES.values() for key, name in entry.items() if key == backend and name})


def made(name: str, **values: object) -> Any:  # Any: a class of transformers
    """A processor, of small images if it can make them. None if it cannot be made without more."""
    from transformers.models.auto.image_processing_auto import get_image_processor_class_from_name

    kind = get_image_processor_class_from_name(name)
    for size in ({"size": {"height": 24, "width": 24}}, {"size": {"shortest_edge": 24}}, {}):
        try:
            processor = kind(**size, crop_size={"height": 24, "width": 24}, **values)
            processor(noise(30, 30), return_tensors="pt")
            return processor
        except Exception:  # each class has its own way to refuse sizes
            continue
    try:
        return kind(**values)
    except Exception:  # needs libraries, or arguments that it does not name
        return None
