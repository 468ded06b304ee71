"""A sharded model of a folder has the weights that one process loads, and no rank needs the whole model to get them."""

import json
import re
from pathlib import Path

import pytest
import torch

from tests.train.model_folders import write_language_model, write_vit
from tests.train.training_runs import TRANSFORMERS, Ranks, load_once

load_once(*TRANSFORMERS, "transformers.models.vit.modeling_vit", "tokenizers", "torch.profiler")
PROGRAM = str(Path(__file__).parents[1] / "programs" / "folder_shares.py")
LARGE = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
}
CASES = {
    "own files": ("llama", 4, "all"),
    "sent by rank 0": ("llama", 2, "first"),
    "tied": ("gpt2", 2, "all"),
    "tied, two matrices": ("two", 2, "all"),
    "bin": ("bin", 4, "first"),
    "random": ("random", 4, "first"),
    "new head": ("vit", 2, "all"),
    "new head, sent": ("vit", 4, "first"),
    "in parts": ("llama", 1, "all", 4),
    "in parts, sent": ("llama", 1, "first", 2),
    "shares of parts": ("llama", 2, "all", 2),
}


def as_bin(folder: Path) -> None:
    """The weights as torch saves them, in place of safetensors."""
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def tie(folder: Path) -> None:
    """A config that ties the two different matrices of the file."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": True}))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """For each case the worst rank's numbers, by name."""
    base = tmp_path_factory.mktemp("shares")
    write_language_model(base / "llama", **LARGE)
    write_language_model(base / "gpt2", "gpt2")
    as_bin(write_language_model(base / "bin"))
    (write_language_model(base / "random", **LARGE) / "model.safetensors").unlink()
    tie(write_language_model(base / "two"))
    write_vit(base / "vit")
    words = {
        case: ",".join(map(str, (base / kind, shards, hosts, *(tp or [1]))))
        for case, (kind, shards, hosts, *tp) in CASES.items()
    }
    run = Ranks(base / "run", 1, 4, list(words.values()), program=PROGRAM)
    try:
        assert run.codes() == [0, 0, 0, 0], run.text()
    finally:
        run.kill()
    rows = {case: line for case, word in words.items() for line in run.text().splitlines() if line.startswith(word)}
    return {case: {k: float(v) for k, v in re.findall(r"(\w+)=(\S+)", line)} for case, line in rows.items()}


# `make test` trains from a folder's weights in train/jobs: test_folder_layouts.py and test_pipeline_folders.py.
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_shares_have_the_bits_of_one_process(found, case):
    assert found[case]["differ"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", ["own files", "sent by rank 0", "in parts", "in parts, sent", "shares of parts"])
def test_loading_needs_a_share_and_one_tensor(found, case):
    assert found[case]["peak"] < 1.02


@pytest.mark.slow
def test_a_process_without_shards_holds_the_weights_once(found):
    assert found["own files"]["copy"] < 0.05
