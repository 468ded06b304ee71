"""`ddp --model FOLDER --lora RANK`: what trains, what is kept and written, and that peft reads it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from algorun_train.common.errors import UserError
from algorun_train.models import lora
from tests.train.model_folders import write_language_model, write_text, write_vit
from tests.train.training_runs import TRANSFORMERS, epochs, load_once, once

load_once(*TRANSFORMERS, "transformers.models.vit.modeling_vit", "tokenizers", "peft")
FEW = ["--epochs", "2", "--batch-size", "8", "--context", "16", "--lr", "0.02", "--gamma", "1", "--lora", "2"]
STEP = str(Path(__file__).parents[1] / "programs" / "lora_step.py")


def logits(model, tokens=((7, 8, 9, 10),)):
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor(tokens)).logits


# Kinds of models and layouts are those of the jobs without adapters.
@pytest.mark.slow(but=["gpt2"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_adapters_train_and_peft_reads_them_on_the_folder(alone, tmp_path, kind):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, text = write_language_model(tmp_path / kind, kind), write_text(tmp_path / "text", 150)
    log = alone(*FEW, "--lora-alpha", "8", "--model", str(folder), "--train", str(text))
    assert "weights train (LoRA of rank 2 on " in log
    records = epochs(tmp_path / "alone")
    assert records[-1]["val_loss"] < records[0]["train_loss"] - 0.1
    written = tmp_path / "alone" / "model"
    assert not list(written.glob("model*.safetensors"))
    config = json.loads((written / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 8, "CAUSAL_LM")
    assert all(".lora_" in name for name in load_file(written / "adapter_model.safetensors"))
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), written)
    before = logits(AutoModelForCausalLM.from_pretrained(folder))
    assert (logits(adapted) - before).abs().max() > 0.05
    assert len(AutoTokenizer.from_pretrained(written)) > 256
    kept = torch.load(next((tmp_path / "alone" / "checkpoints").glob("*/*.pt")), weights_only=True)
    assert all(".lora_" in name for name in kept["model"])
    assert kept["model"].keys() == kept["optimizer"].keys()
    again = alone(*FEW, "--lora-alpha", "8", "--model", str(folder), "--train", str(text), "--merge", "True")
    assert "no step is left to train: the job evaluates and writes its artifact" in again
    assert not list(written.glob("adapter_*"))
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(written)), logits(adapted), atol=1e-5)


def test_a_classifier_gets_a_new_head_that_trains_beside_the_adapters(alone, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForImageClassification

    folder = write_vit(tmp_path / "vit", classes=4)
    args = ["--model", str(folder), "--epochs", "1", "--lora", "2", "--lora-targets", "q_proj, fc1"]
    assert "new head for 10 classes" in alone(*args)
    written = tmp_path / "alone" / "model"
    assert {"base_model.model.classifier.weight", "base_model.model.classifier.bias"} < set(
        load_file(written / "adapter_model.safetensors")
    )
    base = AutoModelForImageClassification.from_pretrained(folder, num_labels=10, ignore_mismatched_sizes=True)
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        adapted = PeftModel.from_pretrained(base, written).eval()(pixel_values=images).logits
    alone(*args, "--merge", "True")
    with torch.no_grad():
        merged = AutoModelForImageClassification.from_pretrained(written).eval()(pixel_values=images).logits
    assert torch.allclose(adapted, merged, atol=1e-5)
    assert json.loads((written / "model.json").read_text())["lora_targets"] == ["fc1", "q_proj"]


@pytest.mark.slow(but=["llama-2"])
@pytest.mark.parametrize(("kind", "shards"), [("llama", 2), ("vit", 2)])
def test_two_ranks_compute_the_gradients_of_one_process(ranks, tmp_path, kind, shards):
    folder = write_vit(tmp_path / kind) if kind == "vit" else write_language_model(tmp_path / kind)
    found = []
    for slots in (1, 2):
        out = tmp_path / f"{slots}.pt"
        run = ranks(1, slots, str(folder), str(out), str(shards if slots > 1 else 1), program=STEP)
        assert run.codes() == [0] * slots, run.text()
        found.append(torch.load(out, weights_only=True))
    one, two = found
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-12)
    assert one["gradients"].keys() == two["gradients"].keys()
    assert all(".lora_" in name or ".classifier." in name for name in one["gradients"])
    for name, gradient in one["gradients"].items():
        assert gradient.dtype == torch.float64
        assert float(gradient.norm()) > 0
        assert torch.allclose(two["gradients"][name], gradient, rtol=0, atol=1e-10 * float(gradient.norm())), name


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["1", "2"])
def test_a_resumed_job_has_the_same_bits(ranks, tmp_path, shard):
    folder, text = write_language_model(tmp_path / "llama"), write_text(tmp_path / "text", 100)
    args = once([*FEW, "--model", str(folder), "--train", str(text), "--shard", shard])
    whole, first = ranks(1, 2, *args), ranks(1, 2, *once([*args, "--epochs", "1"]))
    assert whole.codes() + first.codes() == [0] * 4, whole.text() + first.text()
    second = ranks(1, 2, *args, base=first.base)
    assert second.codes() == [0] * 2, second.text()
    assert "resumed:" in second.text()
    one, other = (load_file(run.base / "host0" / "model" / "adapter_model.safetensors") for run in (whole, second))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


REFUSED = {
    "an embedded model": (None, ["--lora", "2"], ["--lora: 2, with an embedded model"]),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ["--lora", "2"], ["has no weights that adapters"]),
    "no such module": (
        lambda f: None, ["--lora", "2", "--lora-targets", "q_proj,query"], ["'query' is no module", "q_proj, k_proj", "up_proj"]
    ),
    "no default": (lambda f: None, ["--lora", "2"], ["not given, and peft has no default", "'vit'", "q_proj"]),
    "alpha without lora": (lambda f: None, ["--lora-alpha", "2"], ["--lora-alpha: 2.0, without --lora"]),
    "merge without lora": (lambda f: None, ["--merge", "True"], ["--merge: True, without --lora"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_adapted_is_refused(alone, tmp_path, case):
    change, options, words = REFUSED[case]
    model = (
        []
        if change is None
        else ["--model", str(write_vit(tmp_path / "f") if "def" in case else write_language_model(tmp_path / "f"))]
    )
    if change:
        change(tmp_path / "f")
    text = ["--train", str(write_text(tmp_path / "text", 20)), "--context", "16"] if model and "def" not in case else []
    with pytest.raises(UserError) as error:
        alone(*options, *model, *text)
    for word in (*words, "allowed: ", "fix: "):
        assert word in str(error.value)


def test_without_peft_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(UserError, match=r"--lora: needs the package peft.*fix: pip install 'peft>=0.17'"):
        lora.prepare_peft()
