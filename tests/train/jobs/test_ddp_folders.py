"""`ddp --model FOLDER` with image classifiers: what is trained, what is written, and what is refused."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from algorun_train.common.errors import UserError
from tests.train.model_folders import write_vit
from tests.train.training_runs import TRANSFORMERS, epochs, load_once, once

load_once(*TRANSFORMERS, "transformers.models.vit.modeling_vit")
FEW = ["--epochs", "1", "--batch-size", "48", "--augment", "none"]


def edit(file, **changes):
    values = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in (values | changes).items() if v is not None}))


def test_a_folder_comes_in_and_a_folder_goes_out(alone, tmp_path):
    folder = write_vit(tmp_path / "vit")
    text = alone(*FEW, "--model", str(folder))
    assert f"option --model: {folder}: 24 of 24 tensors taken from model.safetensors" in text
    assert "images of 16 x 16, 10 classes" in text
    assert f"model: ViTForImageClassification of {folder}" in text
    from transformers import AutoModelForImageClassification, ViTImageProcessorPil

    written = tmp_path / "alone" / "model"
    model, report = AutoModelForImageClassification.from_pretrained(written, output_loading_info=True)
    assert not any(report.values())
    assert model.config.id2label[3] == "3"
    assert ViTImageProcessorPil.from_pretrained(written).image_std == (0.2, 0.25, 0.5)
    assert sorted(file.name for file in written.iterdir()) == [
        "config.json", "model.json", "model.safetensors", "preprocessor_config.json"
    ]  # fmt: skip
    assert json.loads((written / "model.json").read_text())["val_loss"] == pytest.approx(score(model), rel=1e-5)
    assert not torch.equal(load_file(written / "model.safetensors")["vit.layernorm.weight"], torch.ones(16))


def score(model):
    """The loss over the validation split, by transformers' own image processor."""
    from transformers import ViTImageProcessorPil

    from algorun_train.data import image_data
    from algorun_train.data.sampler import Batching
    from algorun_train.options.job_options import DdpJobOptions

    data = image_data.embedded(DdpJobOptions(image_size=16), torch.device("cpu"))
    process = ViTImageProcessorPil(
        size={"height": 16, "width": 16}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.25, 0.5]
    )
    losses = []
    for batch in data.evaluation(Batching(64, 1, 0, 1)):
        pixels = ((batch.inputs + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        values = process(list(pixels), return_tensors="pt", input_data_format="channels_last").pixel_values
        with torch.no_grad():
            logits = model(pixel_values=values).logits
        losses += torch.nn.functional.cross_entropy(logits, batch.labels, reduction="none")[: batch.valid].tolist()
    return float(np.mean(losses))


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ({"classes": 3}, "22 of 24 tensors taken from model.safetensors; new head for 10 classes: classifier.bias"),
        ({"base": True}, "new head for 10 classes: classifier.bias, classifier.weight; not used: pooler.dense.bias"),
        ({"weights": False}, "no weights there; starting from random ones"),
    ],
)
def test_the_log_says_what_starts_anew(alone, tmp_path, monkeypatch, made, line):
    folder = write_vit(tmp_path / "vit", **made)
    assert line in alone(*FEW, "--model", str(folder))
    assert epochs(tmp_path / "alone")[0]["train_loss"] < 2.6


def test_a_head_for_other_classes_of_the_same_number_starts_anew(alone, tmp_path):
    folder = write_vit(tmp_path / "vit")
    edit(folder / "config.json", id2label={str(i): f"animal {i}" for i in range(10)})
    assert "new head for 10 classes" in alone(*FEW, "--model", str(folder))


def shorten(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def without_a_weight(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["vit.layernorm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class Evil:
    def __reduce__(self):
        return print, ("executed",)


def with_code(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"vit.layernorm.weight": Evil()}, folder / "pytorch_model.bin")


REFUSED = {
    "no config": (lambda f: (f / "config.json").unlink(), ["config.json cannot be read: No such file", "save_pretrained"]),
    "not JSON": (lambda f: (f / "config.json").write_text("{"), ["config.json is not JSON"]),
    "a list": (lambda f: (f / "config.json").write_text("[]"), ["config.json holds a list"]),
    "another kind": (
        lambda f: edit(f / "config.json", architectures=["BertForQuestionAnswering"], model_type="bert"),
        ["'BertForQuestionAnswering' in config.json cannot be trained here", "image classification"],
    ),
    "code of its own": (
        lambda f: edit(f / "config.json", model_type="mine", auto_map={"AutoModel": "m.M"}),
        ["'ViTForImageClassification'", "cannot be trained here"],
    ),
    "no architecture": (lambda f: edit(f / "config.json", architectures=None), ["architectures None"]),
    "sizes of nonsense": (lambda f: edit(f / "config.json", hidden_act="nonsense"), ["cannot build this model"]),
    "no processor": (lambda f: (f / "preprocessor_config.json").unlink(), ["no preprocessor_config.json"]),
    "another size": (lambda f: edit(f / "config.json", image_size=32), ["--image-size: 16", "takes 16", "32 by its config"]),
    "weights of another model": (lambda f: edit(f / "config.json", intermediate_size=64), ["does not fit config.json", "is [32, 16], config.json asks for [64, 16]"]),
    "a weight is missing": (without_a_weight, ["vit.layernorm.weight is missing"]),
    "weights that end early": (shorten, ["model.safetensors cannot be read"]),
    "weights with code": (with_code, ["pytorch_model.bin holds other objects than tensors"]),
    "weights by another name": (
        lambda f: (f / "model.safetensors").rename(f / "adapter.safetensors"), ["adapter.safetensors is not a name"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_cannot_be_trained_is_refused(alone, tmp_path, capsys, case):
    folder = write_vit(tmp_path / "vit")
    change, words = REFUSED[case]
    change(folder)
    with pytest.raises(UserError) as error:
        alone(*FEW, "--model", str(folder))
    for word in (*words, f"option --model: {folder}" if case != "another size" else str(folder), "allowed: ", "fix: "):
        assert word in str(error.value)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--width", "64"], ["--heads", "2"], ["--init-from", "x.pt"]])
def test_sizes_of_embedded_models_are_refused_with_a_folder(alone, tmp_path, option):
    with pytest.raises(UserError, match=rf"option {option[0]}: .*option --model .*vit, convnet.*config.json decides"):
        alone(*FEW, "--model", str(write_vit(tmp_path / "vit")), *option)


# Each layout resumes in test_ddp_sharded.py.
@pytest.mark.slow
def test_ranks_that_resume_give_the_same_bits_and_the_channel_names_the_model(ranks, tmp_path):
    folder = write_vit(tmp_path / "vit", classes=3)
    args = once([*FEW, "--epochs", "2", "--deterministic", "True"])
    whole = ranks(2, 2, *args, SM_CHANNEL_MODEL=str(folder))
    assert whole.codes() == [0] * 4, whole.text()
    assert f"channel 'model': {folder}: 22 of 24 tensors" in whole.text()
    first = ranks(2, 2, *once([*args, "--epochs", "1", "--warmup-epochs", "1"]), SM_CHANNEL_MODEL=str(folder))
    assert first.codes() == [0] * 4
    second = ranks(2, 2, *args, base=first.base, SM_CHANNEL_MODEL=str(folder))
    assert second.codes() == [0] * 4, second.text()
    assert "resumed:" in second.text()
    one, other = (load_file(run.base / "host0" / "model" / "model.safetensors") for run in (whole, second))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_options_load_neither_torch_nor_transformers():
    program = "import sys; import algorun_train.jobs.check as c; c.main(['ddp', '--model', '/some/where']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers"} & set(loaded)
