"""`ddp --model FOLDER` with causal language models on text."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from algorun_train.common.errors import UserError
from tests.train.jobs.test_ddp_folders import edit, shorten
from tests.train.model_folders import write_language_model, write_text, write_vit
from tests.train.training_runs import TRANSFORMERS, epochs, load_once, once

load_once(*TRANSFORMERS, "transformers.models.vit.modeling_vit", "tokenizers")
FEW = ["--epochs", "3", "--batch-size", "8", "--context", "16", "--lr", "0.01", "--gamma", "1"]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_language_model_learns_and_is_written_as_a_folder(alone, tmp_path, kind):
    folder = write_language_model(tmp_path / kind, kind)
    text = alone(*FEW, "--model", str(folder), "--train", str(write_text(tmp_path / "text")))
    assert "tensors taken from model.safetensors" in text
    assert "sequences of 16 tokens" in text
    records = epochs(tmp_path / "alone")
    assert records[0]["train_loss"] == pytest.approx(math.log(300), abs=2.5)
    assert records[-1]["val_loss"] < 0.6 * records[0]["train_loss"]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    written = tmp_path / "alone" / "model"
    model, report = AutoModelForCausalLM.from_pretrained(written, output_loading_info=True)
    assert not any(report.values())
    tokenizer = AutoTokenizer.from_pretrained(written)
    answer = model.generate(**tokenizer("two red and", return_tensors="pt"), max_new_tokens=2, do_sample=False)
    assert tokenizer.decode(answer[0]).startswith("two red and")
    assert (written / "generation_config.json").exists()
    described = json.loads((written / "model.json").read_text())
    assert described["val_loss"] == records[-1]["val_loss"]
    assert (
        described["val_perplexity"] == records[-1]["val_perplexity"] == pytest.approx(math.exp(described["val_loss"]))
    )
    assert records[-1]["tokens_per_s"] == 16 * records[-1]["sequences_per_s"] > 0
    summary = json.loads((tmp_path / "alone" / "output" / "data" / "summary.json").read_text())
    assert (summary["perplexity"], summary["tokens_per_s"] > 0) == (described["val_perplexity"], True)


# Shares resume in test_ddp_sharded.py.
@pytest.mark.slow
@pytest.mark.parametrize("shards", ["1", "2"])
def test_a_resumed_language_model_has_the_same_bits_and_reads_no_first_weights(ranks, tmp_path, shards):
    folder, text = write_language_model(tmp_path / "gpt2", "gpt2"), write_text(tmp_path / "text", 120)
    args = once(
        [*FEW, "--epochs", "2", "--model", str(folder), "--train", str(text), "--batch-size", "2", "--shard", shards]
    )
    whole = ranks(2, 2, *args)
    assert whole.codes() == [0] * 4, whole.text()
    first = ranks(2, 2, *once([*args, "--epochs", "1"]))
    assert first.codes() == [0] * 4, first.text()
    shorten(folder)  # to read them would be an error
    second = ranks(2, 2, *args, base=first.base)
    assert second.codes() == [0] * 4, second.text()
    assert "resumed:" in second.text()
    one, other = (load_file(run.base / "host0" / "model" / "model.safetensors") for run in (whole, second))
    assert all(torch.equal(one[name], other[name]) for name in one)
    losses = [[record["train_loss"] for record in epochs(run.base / "host0")] for run in (whole, second)]
    assert losses[0] == losses[1]


REFUSED = {
    "no tokenizer": (lambda f: [file.unlink() for file in f.glob("token*")], [], ["no tokenizer", "tokenizer.json"]),
    "a broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), [], ["the tokenizer cannot be read"]),
    "a tokenizer with more tokens": (
        lambda f: edit(f / "config.json", vocab_size=200), [], ["285 tokens", "200 by vocab_size"]
    ),
    "a context that is too long": (lambda f: None, ["--context", "64"], ["--context: 64 is more than the 32 tokens"]),
    "images asked for": (lambda f: None, ["--image-size", "16"], ["--image-size: 16", "language model"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_language_model_that_cannot_be_trained_is_refused(alone, tmp_path, case):
    folder, text = write_language_model(tmp_path / "llama"), write_text(tmp_path / "text", 20)
    change, options, words = REFUSED[case]
    change(folder)
    with pytest.raises(UserError) as error:
        alone(*once([*FEW, "--model", str(folder), "--train", str(text), *options]))
    for word in (*words, str(folder), "allowed: ", "fix: "):
        assert word in str(error.value)


def test_a_context_for_images_is_refused(alone, tmp_path):
    with pytest.raises(UserError, match="option --context: 16, with the image classifier .*fix: leave it out"):
        alone(*FEW, "--model", str(write_vit(tmp_path / "vit")))
