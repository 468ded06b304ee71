"""Image folders as channels: what is read, and one clear error for each thing that can be wrong with them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from algorun_train.common.errors import UserError
from algorun_train.data import image_data
from algorun_train.data.folder import list_images
from algorun_train.data.image_decoding import decode
from algorun_train.data.sampler import Batching, Epochs
from algorun_train.options import folders, option_parser
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from tests.train.training_runs import SMALL, epochs, once, write_images


@pytest.fixture
def channels(tmp_path):
    train = write_images(tmp_path / "train", ["four", "one", "three"], 20)
    return train, write_images(tmp_path / "val", ["four", "one", "three"], 5, seed=1)


def test_the_book_chapters_job(alone, channels, tmp_path, monkeypatch):
    train, val = map(str, channels)
    options = ["--batch_size", "16", "--epochs", "2", "--gamma", "0.7", "--lr", "3e-05", "--image_size", "16"]
    text = alone(*options, "--train", train, "--val", val)
    assert "60 training and 15 validation images of 16 x 16, 3 classes" in text
    assert len(epochs(tmp_path / "alone")) == 2
    described = json.loads((tmp_path / "alone" / "model" / "model.json").read_text())
    assert described["class_names"] == ["four", "one", "three"]
    summary = json.loads((tmp_path / "alone" / "output" / "data" / "summary.json").read_text())
    assert list(summary)[:3] == ["loss", "accuracy", "images_per_s"]


def test_images_from_files_train_exactly_as_from_memory(alone, channels, tmp_path):
    args = [*SMALL, "--train", str(channels[0]), "--validation", str(channels[1]), "--augment", "shift+flip"]
    alone(*args, base=tmp_path / "memory")
    alone(*args, "--cache-mb", "0", "--workers", "3", base=tmp_path / "files")
    one, two = epochs(tmp_path / "memory"), epochs(tmp_path / "files")
    assert [(r["train_loss"], r["val_loss"]) for r in one] == [(r["train_loss"], r["val_loss"]) for r in two]


def test_without_inputs_batches_are_the_same_but_for_what_is_in_the_images(channels, tmp_path):
    """What ranks of a pipeline get that are not its first: the files may be gone, or on a slow disk."""
    train, validation = channels
    given = ["--cache-mb", "0", "--image-size", "8", "--augment", "shift", "--workers", "1"]
    config = option_parser.read_options(DdpJobOptions, [*given, "--train", str(train), "--validation", str(validation)])
    full = image_data.load(
        config, folders.find_folders(config, {}, Path.is_dir), Communicator(World(), torch.device("cpu"))
    )
    bare = full.without_inputs()
    batching = Batching(16, 1, 0, 1)
    wanted = [*full.training(Epochs(0, 0, 2, 0), batching), *full.evaluation(batching)]
    shutil.rmtree(train)
    shutil.rmtree(validation)
    found = [*bare.training(Epochs(0, 0, 2, 0), batching), *bare.evaluation(batching)]
    assert len(found) == len(wanted) == 9
    for one, other in zip(found, wanted, strict=True):
        (mine,), (theirs,) = (each[1] if isinstance(each, tuple) else (each,) for each in (one, other))
        assert (mine.inputs.shape, mine.inputs.dtype) == (theirs.inputs.shape, theirs.inputs.dtype)
        assert torch.equal(mine.labels, theirs.labels)
        assert mine.valid == theirs.valid


def test_without_a_validation_channel_a_tenth_is_held_out(alone, channels):
    assert "54 training and 6 validation images" in alone(*SMALL, "--train", str(channels[0]))


def test_learns_and_its_artifact_gives_the_reported_accuracy(alone, channels, tmp_path):
    train, val = channels
    args = once([*SMALL, "--epochs", "20", "--model", "convnet", "--lr", "0.01"])
    alone(*args, "--train", str(train), "--validation", str(val))
    summary = json.loads((tmp_path / "alone" / "output" / "data" / "summary.json").read_text())
    assert summary["accuracy"] > 0.8

    from algorun_train.models.image_models import build
    from algorun_train.models.image_spec import ModelSpec

    described = json.loads((tmp_path / "alone" / "model" / "model.json").read_text())
    model = build(ModelSpec(**{k: described[k] for k in ModelSpec.__dataclass_fields__}), 0).eval()
    model.load_state_dict(torch.load(tmp_path / "alone" / "model" / "model.pt", weights_only=True))
    listing = list_images("validation", val)
    pixels = np.stack([decode(listing, i, 8) for i in range(len(listing.files))])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        logits = model(images)
    labels = torch.tensor(listing.labels)
    assert (logits.argmax(1) == labels).double().mean().item() == pytest.approx(summary["accuracy"])
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    assert loss == pytest.approx(summary["loss"], rel=1e-4)


def test_transfer_learning_to_other_classes(alone, channels, tmp_path):
    alone(*SMALL, "--train", str(channels[0]), base=tmp_path / "first")
    text = alone(*SMALL, "--init-from", str(tmp_path / "first" / "model"), base=tmp_path / "second")
    assert "starting anew: head.weight, head.bias" in text
    assert "10 classes" in text


def test_all_modes_and_suffixes_are_read_and_the_rest_is_passed_over(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "deeper").mkdir(parents=True)
        Image.new("L", (9, 5), 200).save(tmp_path / name / "grey.PNG")
        Image.new("RGBA", (5, 9), (200, 200, 200, 9)).save(tmp_path / name / "deeper" / "alpha.png")
        Image.new("CMYK", (7, 7)).save(tmp_path / name / "print.jpeg")
        Image.new("P", (3, 3)).save(tmp_path / name / "palette.png")
        Image.fromarray(np.full((6, 6), 200 * 256, np.uint16)).save(tmp_path / name / "sixteen-bit.png")
        (tmp_path / name / "notes.txt").write_text("no image")
        (tmp_path / name / ".hidden.png").write_text("no image")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    listing = list_images("train", tmp_path)
    assert listing.classes == ("a", "b")
    assert len(listing.files) == 10
    values = {Path(listing.files[i]).name: decode(listing, i, 4) for i in range(5)}
    assert all(v.shape == (4, 4, 3) for v in values.values())
    assert values["grey.PNG"].mean() == 200
    assert values["alpha.png"].mean() == 253  # nearly transparent, on white
    assert values["sixteen-bit.png"].mean() == 200


def missing(root):
    return root / "nowhere", "nowhere cannot be read: No such file"


def a_file(root):
    (root / "f").write_text("")
    return root / "f", "cannot be read: Not a directory"


def empty(root):
    (root / "empty").mkdir()
    return root / "empty", "holds no class folders"


def only_a_zip(root):
    (root / "zipped").mkdir()
    (root / "zipped" / "horse-or-human.zip").write_text("")
    return root / "zipped", "no class folders, only 1 .zip; allowed"


def flat(root):
    folder = root / "flat"
    folder.mkdir()
    Image.new("L", (4, 4)).save(folder / "1.png")
    return folder, "holds no class folders"


def empty_class(root):
    write_images(root / "c", ["a", "b"], 2)
    (root / "c" / "nothing").mkdir()
    return root / "c", "class folder nothing holds no image"


def one_class(root):
    return write_images(root / "c", ["only"], 2), "holds one class, only"


@pytest.mark.parametrize("wrong", [missing, a_file, empty, only_a_zip, flat, empty_class, one_class])
@pytest.mark.parametrize("channel", ["train", "validation"])
def test_a_channel_that_is_no_image_folder(alone, channels, tmp_path, wrong, channel):
    path, text = wrong(tmp_path)
    other = {"train": channels[0], "validation": channels[1]} | {channel: path}
    with pytest.raises(UserError) as caught:
        alone(*SMALL, "--train", str(other["train"]), "--validation", str(other["validation"]))
    for part in (f"channel '{channel}' at {path}", text, "allowed:", "fix:"):
        assert part in str(caught.value)
    assert ("algorun_extract" in str(caught.value)) == (wrong is only_a_zip)


def test_classes_that_differ(alone, channels, tmp_path):
    val = write_images(tmp_path / "other", ["four", "one", "two"], 2)
    with pytest.raises(
        UserError, match=r"three only in train; two only in validation; allowed: the same class folders"
    ):
        alone(*SMALL, "--train", str(channels[0]), "--validation", str(val))


def splits(root):
    for name in ("train", "val", "test"):
        write_images(root / "c" / name, ["one", "two"], 2)
    return root / "c", [
        "holds the folders test, train, val, each with one, two in it: these are the splits",
        "--train {}/train --validation {}/val",
    ]


def one_image_a_class(root):
    return write_images(root / "c", ["one", "two"], 1), [
        "one image of each class, and none of them can be held out for validation"
    ]


def two_forms(root):
    write_images(root / "c", ["caf\u00e9", "tea"], 2)
    return write_images(root / "c", ["cafe\u0301"], 2), [
        "twice, in two forms of Unicode ('cafe\\u0301' and 'caf\\xe9')"
    ]


@pytest.mark.parametrize("wrong", [splits, one_image_a_class, two_forms])
def test_what_would_train_on_other_classes_or_without_validation_is_one_error(alone, tmp_path, wrong):
    path, words = wrong(tmp_path)
    with pytest.raises(UserError) as caught:
        alone(*SMALL, "--train", str(path))
    for word in (*words, f"channel 'train' at {path}", "allowed:", "fix:"):
        assert word.format(path, path) in str(caught.value)


def test_class_folders_with_the_names_of_splits_are_classes_if_they_hold_no_common_folders(tmp_path):
    root = write_images(tmp_path / "c", ["test", "train"], 2)
    assert list_images("train", root).classes == ("test", "train")


def test_names_in_two_forms_of_unicode_are_one_class_in_both_channels(alone, tmp_path):
    """macOS writes NFD."""
    train = write_images(tmp_path / "train", ["caf\u00e9", "tea"], 2)
    val = write_images(tmp_path / "val", ["cafe\u0301", "tea"], 2)
    assert "4 training and 4 validation images" in alone(*SMALL, "--train", str(train), "--validation", str(val))


def test_validation_alone(alone, channels):
    with pytest.raises(UserError, match="'validation' is given without 'train'"):
        alone(*SMALL, "--validation", str(channels[1]))


@pytest.mark.parametrize("cache_mb", ["256", "0"])
def test_a_truncated_image_is_found_at_the_latest_when_decoded(alone, channels, cache_mb):
    victim = channels[0] / "one" / "2.JPG"
    victim.write_bytes(victim.read_bytes()[:300])
    with pytest.raises(UserError) as caught:
        alone(*SMALL, "--train", str(channels[0]), "--cache-mb", cache_mb)
    for part in (f"channel 'train': {victim} is a corrupt image", "allowed:", "fix: replace or remove"):
        assert part in str(caught.value)


def test_the_headers_of_a_large_channel_are_checked_before_training(alone, channels, capsys):
    (channels[0] / "three" / "1.png").write_bytes(b"\x89PNG nonsense")
    with pytest.raises(UserError, match=r"1\.png is a corrupt image"):
        alone(*SMALL, "--train", str(channels[0]), "--cache-mb", "0")
    assert "global batch" not in capsys.readouterr().out


def test_a_folder_that_cannot_be_written(alone, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"model folder .*taken cannot be written.*--model-dir"):
        alone(*SMALL, "--model-dir", str(tmp_path / "taken"))
