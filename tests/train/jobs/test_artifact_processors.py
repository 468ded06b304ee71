"""transformers alone, with the model and the image processor of an artifact, gives the loss and the accuracy of the job."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageOps

from algorun_train.common.errors import UserError
from tests.train.model_folders import write_vit
from tests.train.training_runs import TRANSFORMERS, load_once, once, write_images

load_once(*TRANSFORMERS, "transformers.models.vit.modeling_vit", "peft")
CLASSES = ["four", "one", "three"]
SQUARE = {"height": 16, "width": 16}
PROCESSORS: dict[str, dict[str, object]] = {
    "bgr": {"image_processor_type": "MobileViTImageProcessor", "size": {"shortest_edge": 18}, "crop_size": SQUARE},
    "rescaled": {
        "image_processor_type": "EfficientNetImageProcessor", "size": SQUARE, "rescale_factor": 1 / 127.5,
        "rescale_offset": True, "image_std": [0.478, 0.473, 0.474],
    },
    "0 to 255": {"image_processor_type": "ConvNextImageProcessor", "size": 16, "do_rescale": False, "do_normalize": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def channels(tmp_path_factory):
    """Images of other shapes than squares; some photographs are turned by their EXIF, some drawings are transparent."""
    base = tmp_path_factory.mktemp("channels")
    train, val = write_images(base / "train", CLASSES, 8), write_images(base / "val", CLASSES, 6, seed=1)
    for number, path in enumerate(sorted(val.rglob("*.*"))):
        with Image.open(path) as image:
            wide = image.convert("RGB").resize((40 + number, 23))
        exif = Image.Exif()
        exif[274] = 1 + number % 8
        wide.putalpha(number * 14) if path.suffix == ".png" else None
        wide.save(path, exif=exif)
    return train, val


def with_processor(folder: Path, values: dict[str, object]) -> Path:
    write_vit(folder, classes=3)
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return folder


def by_transformers_alone(artifact: Path, channel: Path) -> tuple[float, float]:
    """Loss and accuracy."""
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(artifact).eval()
    processor = AutoImageProcessor.from_pretrained(artifact)
    losses, right = [], []
    for label, name in enumerate(CLASSES):
        assert model.config.label2id[name] == label
        for path in sorted((channel / name).iterdir()):
            with Image.open(path) as image, torch.no_grad():
                logits = model(**processor(ImageOps.exif_transpose(image), return_tensors="pt")).logits
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor([label])).item())
            right.append(int(logits.argmax()) == label)
    return sum(losses) / len(losses), sum(right) / len(right)


@pytest.mark.parametrize("name", PROCESSORS)
def test_transformers_alone_gives_the_loss_of_the_job(alone, channels, tmp_path, name):
    folder = with_processor(tmp_path / "vit", PROCESSORS[name])
    train, val = channels
    args = [
        "--model",
        str(folder),
        "--train",
        str(train),
        "--validation",
        str(val),
        "--epochs",
        "1",
        "--augment",
        "none",
    ]
    alone(*args, "--lr", "0.0005")
    artifact = tmp_path / "alone" / "model"
    said = json.loads((artifact / "model.json").read_text())
    loss, accuracy = by_transformers_alone(artifact, val)
    assert loss == pytest.approx(
        said["val_loss"], abs=2e-3
    )  # a pixel of a turned image may differ by one of 256 levels
    assert accuracy == said["val_accuracy"]


def says_what_the_job_did(artifact: Path) -> None:
    written = json.loads((artifact / "preprocessor_config.json").read_text())
    assert (written["size"], written["crop_size"], written["resample"]) == ({"shortest_edge": 16}, SQUARE, 2)
    assert written["do_flip_channel_order"] is True
    assert not (artifact / "processor_config.json").exists()


def test_adapters_come_with_the_same_processor(alone, channels, tmp_path):
    folder = with_processor(tmp_path / "vit", PROCESSORS["bgr"])
    (folder / "processor_config.json").write_text("{}")
    train, val = channels
    args = ["--model", str(folder), "--train", str(train), "--validation", str(val), "--epochs", "1"]
    alone(*args, "--lora", "2", "--lora-targets", "q_proj")
    says_what_the_job_did(tmp_path / "alone" / "model")


# Stages write with the code of ddp.
@pytest.mark.slow
def test_the_stages_of_a_pipeline_write_the_same_processor(ranks, channels, tmp_path):
    folder = with_processor(tmp_path / "vit", PROCESSORS["bgr"])
    train, val = channels
    args = ["--model", str(folder), "--train", str(train), "--validation", str(val), "--epochs", "1"]
    run = ranks(1, 2, *once([*args, "--pp", "2", "--batch-size", "8"]), program="algorun_train.jobs.pipeline")
    assert run.codes() == [0, 0], run.text()
    says_what_the_job_did(run.base / "host0" / "model")
    said = json.loads((run.base / "host0" / "model" / "model.json").read_text())
    assert by_transformers_alone(run.base / "host0" / "model", val)[0] == pytest.approx(said["val_loss"], abs=2e-3)


def test_a_processor_that_no_job_can_imitate_is_refused_before_anything_is_read(alone, tmp_path):
    folder = with_processor(tmp_path / "vit", {"image_processor_type": "Siglip2ImageProcessor"})
    with pytest.raises(UserError, match=r"Siglip2ImageProcessorPil makes .* besides pixel_values; allowed: .*; fix: "):
        alone("--model", str(folder), "--train", "/nowhere", "--validation", "/nowhere")
