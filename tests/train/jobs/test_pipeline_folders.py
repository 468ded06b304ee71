"""`pipeline --model FOLDER`: models of Hugging Face folders in stages, beside one process and beside `ddp`."""

import shutil

import pytest

from algorun.inside.stop_flag import StopFlag
from algorun_train.common.errors import UserError
from algorun_train.jobs import pipeline
from tests.train.model_folders import write_language_model, write_text
from tests.train.training_runs import TRANSFORMERS, epochs, load_once, once

load_once(*TRANSFORMERS, "tokenizers")
PIPELINE = "algorun_train.jobs.pipeline"
NO_DROPOUT = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
OPTIONS = ["--epochs", "2", "--context", "16", "--lr", "0.01", "--gamma", "1"]


# A model's cut and a layout are independent of each other.
# Of folders in layouts `make test` looks at one step: test_folder_layouts.py.
@pytest.mark.slow
@pytest.mark.parametrize(("stages", "shards"), [(2, 1), (2, 2), (1, 2)])
def test_stages_have_the_losses_of_ddp_which_goes_on_from_them(ranks, alone, tmp_path, stages, shards):
    """Tied weights and their moments lie in two stages; ddp reads them from the hosts' shards."""
    folder, text = write_language_model(tmp_path / "gpt2", "gpt2", **NO_DROPOUT), write_text(tmp_path / "text", 60)
    words = [*OPTIONS, "--train", str(text), "--batch-size", "8"]
    alone(*words, "--model", str(folder))
    own = [
        "--epochs",
        "1",
        "--pp",
        str(stages),
        "--shard",
        "all",
        "--batch-size",
        str(8 // shards),
        "--clip-norm",
        "1000",
    ]
    per_host = stages * shards // 2
    run = ranks(2, per_host, *once([*words, *own]), program=PIPELINE, SM_CHANNEL_MODEL=str(folder))
    assert run.codes() == [0, 0] * per_host, run.text()
    assert f"channel 'model': {folder}: 29 of 29 tensors taken from model.safetensors" in run.text()
    assert "sequences of 16 tokens" in run.text()
    for host in range(2):
        shutil.copytree(run.base / f"host{host}" / "checkpoints", tmp_path / "on" / "checkpoints", dirs_exist_ok=True)
    assert "resumed: " in alone(*words, "--model", str(folder), base=tmp_path / "on")
    keys = ("train_loss", "val_loss", "val_accuracy")
    for one, other in zip(
        epochs(tmp_path / "alone"), epochs(run.base / "host0") + epochs(tmp_path / "on"), strict=True
    ):
        assert [other[key] for key in keys] == pytest.approx([one[key] for key in keys], rel=1e-5)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    written = run.base / "host0" / "model"
    _, report = AutoModelForCausalLM.from_pretrained(written, output_loading_info=True)
    assert not any(report.values())
    assert AutoTokenizer.from_pretrained(written).eos_token == "</s>"


REFUSED = {
    "no folder": ("none", [], ["option --model: 'none' is no model and no folder", "gpt, vit"]),
    "no tokenizer": ("llama", [], ["no tokenizer", "tokenizer.json"]),
    "a size of an embedded model": (
        "llama",
        ["--width", "16"],
        ["option --width: 16, with option --model", "gpt, vit"],
    ),
    "a tied head": ("llama", ["--tied", "True"], ["option --tied: with --model", "allowed: with gpt"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_cannot_be_trained_is_refused(tmp_path, monkeypatch, case):
    name, options, words = REFUSED[case]
    folder = str(write_language_model(tmp_path / name, name)) if name == "llama" else name
    for file in tmp_path.glob("llama/token*"):
        file.unlink()
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    with pytest.raises(UserError) as error:
        pipeline.main([*OPTIONS, "--model", folder, "--train", str(tmp_path), *options], StopFlag())
    for word in (*words, "allowed: ", "fix: "):
        assert word in str(error.value)
