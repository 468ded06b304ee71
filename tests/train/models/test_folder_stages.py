"""The stages of a folder have the weights that one process loads, and only rank 0 ever has the whole model."""

import re
from pathlib import Path

import pytest

from tests.train.model_folders import write_language_model, write_vit
from tests.train.training_runs import TRANSFORMERS, Ranks, load_once

from .test_folder_shares import LARGE, as_bin, tie

load_once(*TRANSFORMERS, "transformers.models.vit.modeling_vit", "tokenizers", "torch.profiler")
PROGRAM = str(Path(__file__).parents[1] / "programs" / "folder_stages.py")
TENSOR, SEGMENT = 0.05, 0.5  # shares of the model: its largest weight; a segment with gradients and activations
CASES = {
    "own files": ("llama", 1, "all"),
    "sent by rank 0": ("llama", 1, "first"),
    "sharded": ("llama", 2, "all"),
    "sharded, sent by rank 0": ("llama", 2, "first"),
    "tied": ("gpt2", 1, "all"),
    "tied, sharded": ("gpt2", 2, "all"),
    "tied, two matrices": ("two", 2, "all"),
    "bin": ("bin", 1, "first"),
    "random": ("random", 2, "all"),
    "new head": ("vit", 1, "first"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The numbers of each case, by name."""
    base = tmp_path_factory.mktemp("stages")
    write_language_model(base / "llama", **LARGE)
    write_language_model(base / "gpt2", "gpt2")
    as_bin(write_language_model(base / "bin"))
    (write_language_model(base / "random") / "model.safetensors").unlink()
    tie(write_language_model(base / "two"))
    write_vit(base / "vit")
    words = {case: f"{base / kind},{shards},{hosts}" for case, (kind, shards, hosts) in CASES.items()}
    run = Ranks(base / "run", 1, 4, list(words.values()), program=PROGRAM)
    try:
        assert run.codes() == [0, 0, 0, 0], run.text() + run.text(1)
    finally:
        run.kill()
    rows = {case: line for case, word in words.items() for line in run.text().splitlines() if line.startswith(word)}
    return {case: {k: float(v) for k, v in re.findall(r"(\w+)=(\S+)", line)} for case, line in rows.items()}


# `make test` trains from a folder's weights in train/jobs: test_folder_layouts.py and test_pipeline_folders.py.
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_stages_have_the_bits_of_one_process(found, case):
    assert found[case]["differ"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", ["own files", "sent by rank 0", "sharded", "sharded, sent by rank 0"])
def test_a_rank_needs_what_it_has_and_one_tensor(found, case):
    """Rank 0 had the whole model while it searched, and has let it go."""
    row = found[case]
    for rank in range(4):
        assert row[f"own{rank}"] < 0.7 / CASES[case][1]
        assert row[f"held{rank}"] < row[f"own{rank}"] + TENSOR
        assert rank == 0 or row[f"peak{rank}"] < max(row[f"own{rank}"] + TENSOR, SEGMENT)
