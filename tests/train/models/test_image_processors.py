"""Image processors of model folders: a job's model sees what the processor makes, and the artifact's processor says what a job
does to images. transformers alone then gives the job's pixels; what no processor can say is refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from algorun_train.common.errors import UserError
from algorun_train.models.image_processor import ImageInput, read_image_input
from tests.conftest import examples
from tests.train.processor_checks import check, classes, made, noise, seen
from tests.train.training_runs import TRANSFORMERS, load_once

load_once(*TRANSFORMERS)
PROGRAM = Path(__file__).parents[1] / "programs" / "processor_sweep.py"
# Those that transformers maps to its image classifiers, and that make one square image.
CLASSIFIERS = [
    f"{name}ImageProcessorPil"
    for name in ("Beit", "Bit", "CLIP", "ConvNext", "DeiT", "EfficientNet", "Levit", "MobileNetV1", "MobileNetV2",
                 "MobileViT", "Perceiver", "PoolFormer", "Pvt", "Segformer", "Siglip", "TextNet", "ViT")
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processors")


# `make test` has those of image classifiers, with any settings, in the code for PIL.
@pytest.mark.slow(but=["MobileViTImageProcessorPil", "EfficientNetImageProcessorPil", "ConvNextImageProcessorPil"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifiers_processor_is_taken_as_it_is_by_default(tmp_path, name):
    made(name).save_pretrained(tmp_path)
    assert isinstance(check(tmp_path, {}), ImageInput)


@pytest.mark.slow
def test_every_processor_gives_the_same_pixels_or_is_refused(tmp_path):
    taken = set()
    for name in classes("pil"):
        processor = made(name)
        if processor is not None:
            processor.save_pretrained(tmp_path / name)
            if isinstance(check(tmp_path / name, {"image_size": 24}), ImageInput):
                taken.add(name)
    assert taken >= {*CLASSIFIERS}


@pytest.mark.slow
def test_every_processor_for_torchvision_gives_the_same_pixels_or_is_refused(tmp_path):
    pytest.importorskip("tests.train.parallel.model_zoo").library("torchvision")
    run = subprocess.run([sys.executable, PROGRAM, tmp_path], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert {name.removesuffix("Pil") for name in CLASSIFIERS} <= found["taken"].keys()
    assert "in the order B, G, R" in found["refused"]["PPLCNetImageProcessor"]


sizes = st.sampled_from(
    [20, [20], {"height": 20, "width": 20}, {"shortest_edge": 20}, {"height": 20, "width": 30}, {"longest_edge": 20}]
)
threes = st.lists(st.floats(0.01, 2).map(lambda each: round(each, 4)), min_size=3, max_size=3)
FIELDS = {
    "do_resize": st.booleans(), "size": sizes, "resample": st.integers(0, 3), "do_center_crop": st.booleans(),
    "crop_size": st.sampled_from([16, {"height": 16, "width": 16}, {"height": 24, "width": 24}]),
    "do_rescale": st.booleans(), "rescale_factor": st.sampled_from([1 / 255, 1 / 127.5, 1.0, 0.5 / 255]),
    "do_normalize": st.booleans(), "image_mean": threes, "image_std": threes, "do_convert_rgb": st.booleans(),
    "do_pad": st.booleans(), "do_flip_channel_order": st.booleans(), "rescale_offset": st.booleans(),
    "include_top": st.booleans(), "crop_pct": st.sampled_from([0.5, 0.875, 0.9, 1.0]),
}  # fmt: skip


@given(st.sampled_from(CLASSIFIERS), st.fixed_dictionaries({}, optional=FIELDS), st.sampled_from([None, 20]))
@examples(75)
def test_a_processor_of_any_settings_gives_the_same_pixels_or_is_refused(folder, name, values, side):
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": name.removesuffix("Pil")} | values)
    )
    check(folder, {"image_size": side})


def written(folder: Path, **values: object) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return folder


SMALL = {"size": {"height": 16, "width": 16}, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.5]}


@pytest.mark.parametrize(
    ("values", "order", "mean", "std"),
    [
        ({"image_processor_type": "ViTImageProcessor"}, (0, 1, 2), (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)),
        ({"image_processor_type": "ViTImageProcessorFast"}, (0, 1, 2), (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)),
        ({"feature_extractor_type": "ViTFeatureExtractor"}, (0, 1, 2), (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)),
        ({"image_processor_type": "ViTImageProcessor", "do_normalize": False}, (0, 1, 2), (0, 0, 0), (1, 1, 1)),
        ({"image_processor_type": "ViTImageProcessor", "do_normalize": False, "rescale_factor": 1 / 127.5}, (0, 1, 2), (0, 0, 0), (0.5, 0.5, 0.5)),
        ({"image_processor_type": "ViTImageProcessor", "do_rescale": False, "image_mean": [127.5] * 3, "image_std": [127.5] * 3}, (0, 1, 2), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ({"image_processor_type": "EfficientNetImageProcessor", "rescale_factor": 1 / 127.5, "rescale_offset": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, (0, 1, 2), (0.75, 0.75, 0.75), (0.125, 0.125, 0.125)),
        ({"image_processor_type": "MobileViTImageProcessor", "crop_size": {"height": 16, "width": 16}}, (2, 1, 0), (0, 0, 0), (1, 1, 1)),
        ({"image_processor_type": "MobileViTImageProcessor", "do_flip_channel_order": False, "crop_size": {"height": 16, "width": 16}}, (0, 1, 2), (0, 0, 0), (1, 1, 1)),
        ({"image_processor_type": "MobileViTImageProcessor", "do_resize": False, "do_center_crop": False}, (2, 1, 0), (0, 0, 0), (1, 1, 1)),
        ({"image_processor_type": "BeitImageProcessor", "do_reduce_labels": True}, (0, 1, 2), (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)),
        ({"image_processor_type": "LevitImageProcessor", "size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}, (0, 1, 2), (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)),
        ({"image_processor_type": "PoolFormerImageProcessor", "crop_pct": 0.5, "crop_size": {"height": 16, "width": 16}}, (0, 1, 2), (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)),
        ({"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.5, "size": {"shortest_edge": 16}}, (0, 1, 2), (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)),
        ({"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 64}, "crop_size": {"height": 16, "width": 16}}, (0, 1, 2), (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)),
    ],
)  # fmt: skip
def test_every_setting_counts_as_it_does_for_transformers(tmp_path, values, order, mean, std):
    found = check(written(tmp_path, **(SMALL | values)), {"image_size": 16})
    assert isinstance(found, ImageInput)
    assert found.side == 16
    assert found.order == order
    assert found.mean == pytest.approx(mean, abs=1e-6)
    assert found.std == pytest.approx(std, rel=1e-5)


def test_what_is_written_keeps_class_and_numbers_and_says_what_a_job_does(tmp_path):
    values = SMALL | {"image_processor_type": "ViTImageProcessor", "resample": 3}
    found = check(written(tmp_path, **values), {})
    assert isinstance(found, ImageInput)
    assert found.processor == {
        "image_processor_type": "ViTImageProcessor", "do_convert_rgb": True, "do_resize": True, "size": {"shortest_edge": 16},
        "resample": 2, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}, "do_rescale": True,
        "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.5],
    }  # fmt: skip


def test_the_image_processor_inside_a_processor_comes_first_as_in_transformers(tmp_path):
    inner = SMALL | {"image_processor_type": "ViTImageProcessor"}
    written(tmp_path, **(inner | {"image_std": [1, 1, 1]}))
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"processor_class": "ViltProcessor", "image_processor": inner})
    )
    assert read_image_input("here", tmp_path, {}).std == (0.2, 0.25, 0.5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 20}}, "makes images of 16 x 20 pixels"),
        ({"image_processor_type": "ViTImageProcessor", "do_resize": False}, "so the model's size is unknown"),
        ({"image_processor_type": "ViTImageProcessor", "image_std": [0, 1, 1]}, "ViTImageProcessorPil"),
        ({"image_processor_type": "ViTImageProcessor", "image_mean": [0.5]}, "fails on a square image: mean must have 3"),
        ({"image_processor_type": "Siglip2ImageProcessor"}, "besides pixel_values"),
        ({"image_processor_type": "NoSuchImageProcessor"}, "the image processor cannot be read"),
        ({"image_processor_type": "PPLCNetImageProcessor"}, "torchvision: PPLCNetImageProcessor"),
        ({"image_processor_type": "ImageGPTImageProcessor", "clusters": [[-1, -1, -1], [1, 1, 1]]}, "ImageGPTImageProcessorPil"),
        ({"auto_map": {"AutoImageProcessor": "mine.Mine"}, "image_processor_type": "Mine"}, "the image processor cannot be read"),
        ({}, "the image processor cannot be read"),
    ],
)  # fmt: skip
def test_what_a_job_cannot_do_is_refused_by_name(tmp_path, values, words):
    found = check(written(tmp_path, **(SMALL | values)), {})
    assert isinstance(found, str)
    assert words in found


def test_a_size_that_the_processor_leaves_alone_comes_from_the_config(tmp_path):
    written(tmp_path, **(SMALL | {"image_processor_type": "ViTImageProcessor", "do_resize": False}))
    found = check(tmp_path, {"image_size": 16})
    assert isinstance(found, ImageInput)
    assert found.side == 16


def test_grey_models_and_broken_files_are_refused(tmp_path):
    with pytest.raises(
        UserError, match="here: no preprocessor_config.json, so size and colours .*; allowed: .*; fix: "
    ):
        read_image_input("here", tmp_path, {})
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(UserError, match="here: the image processor cannot be read: .*; allowed: .*; fix: "):
        read_image_input("here", tmp_path, {})
    with pytest.raises(UserError, match="config.json has num_channels 1; allowed: 3.*; fix: "):
        read_image_input("here", tmp_path, {"num_channels": 1})


def four() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (17, 23, 4), np.uint8))


MODES = {
    "RGB.png": lambda: noise(23, 17),
    "L.png": lambda: noise(23, 17).convert("L"),
    "1.png": lambda: noise(23, 17).convert("1"),
    "P.png": lambda: noise(23, 17).quantize(16),
    "RGBA.png": lambda: four(),
    "LA.png": lambda: four().convert("LA"),
    "RGBA.webp": lambda: four(),
    "RGBA.tif": lambda: four(),
    "CMYK.tif": lambda: noise(23, 17).convert("CMYK"),
    "CMYK.jpg": lambda: noise(23, 17).convert("CMYK"),
    "L.jpg": lambda: noise(23, 17).convert("L"),
    "RGB.jpg": lambda: noise(23, 17),
    "RGB.bmp": lambda: noise(23, 17),
    "P.gif": lambda: noise(23, 17).quantize(16),
}


@pytest.mark.parametrize("name", MODES)
def test_an_image_of_any_mode_is_seen_as_by_the_processor_that_is_written(tmp_path, name):
    from transformers import AutoImageProcessor

    found = check(written(tmp_path, **(SMALL | {"image_processor_type": "ViTImageProcessor"})), {})
    assert isinstance(found, ImageInput)
    MODES[name]().save(tmp_path / name)
    with Image.open(tmp_path / name) as image:
        made = AutoImageProcessor.from_pretrained(tmp_path / "artifact")(image, return_tensors="pt")["pixel_values"][0]
    assert np.abs(seen(found, tmp_path / name) - made.numpy()).max() * 0.2 * 255 < 1.01
