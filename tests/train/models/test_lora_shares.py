"""A sharded model with adapters has the weights of one process, and no rank holds the whole folder's to get them."""

import re
from pathlib import Path

import pytest
import torch

from algorun_train.jobs.chosen_model import FolderJobModel
from algorun_train.jobs.lora_model import LoraJobModel
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_meta import build_on_meta
from algorun_train.models.folder_model import prepare_transformers
from algorun_train.models.lora import base_weights
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World
from tests.train.model_folders import write_language_model, write_vit
from tests.train.programs.measured import allocated, measured
from tests.train.training_runs import TRANSFORMERS, Ranks, load_once

load_once(*TRANSFORMERS, "transformers.models.vit.modeling_vit", "tokenizers", "torch.profiler", "peft")
PROGRAM = str(Path(__file__).parents[1] / "programs" / "lora_shares.py")
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6}
LARGE = {"hidden_size": 640, "intermediate_size": 1280, "num_hidden_layers": 6}  # more weights than are built whole
CASES = {
    "four shares": ("llama", 4, "q_proj+v_proj"),
    "two replicas": ("llama", 2, "q_proj+v_proj"),
    "tied, transposed": ("gpt2", 2, "c_attn"),
    "new head": ("vit", 4, "q_proj+fc1"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """For each case the worst rank's numbers, by name."""
    base = tmp_path_factory.mktemp("lora")
    write_language_model(base / "llama", **WIDE)
    write_language_model(base / "gpt2", "gpt2")
    write_vit(base / "vit")
    words = {case: f"{base / kind},{shards},{targets}" for case, (kind, shards, targets) in CASES.items()}
    with Ranks(base / "run", 1, 4, list(words.values()), program=PROGRAM) as run:
        assert run.codes() == [0, 0, 0, 0], run.text()
    rows = {case: line for case, word in words.items() for line in run.text().splitlines() if line.startswith(word)}
    return {case: {k: float(v) for k, v in re.findall(r"(\w+)=(\S+)", line)} for case, line in rows.items()}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_shares_have_the_bits_of_one_process(found, case):
    assert found[case]["adapters"] > 0
    assert found[case]["differ"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", ["four shares", "two replicas"])
def test_a_rank_needs_its_share_and_one_tensor(found, case):
    assert found[case]["peak"] < 1.1


@pytest.mark.slow(but=["lora"])
@pytest.mark.parametrize("kind", ["all weights", "lora"])
def test_a_large_model_without_shards_takes_no_memory_of_the_host_until_its_device_has_some(tmp_path, kind):
    prepare_transformers()
    folder = read_folder(write_language_model(tmp_path / "llama", **LARGE), "option --model")
    comm = Communicator(World(), torch.device("cpu"))
    build_on_meta(folder, None)  # what transformers makes once
    with measured() as profiled:
        chosen = (
            LoraJobModel(DdpJobOptions(lora=4), folder, None, comm)
            if kind == "lora"
            else FolderJobModel(folder, None, 0, on_meta=True)
        )
    weights = [parameter for parameter in chosen.module.parameters() if parameter.is_meta]
    size = sum(weight.nbytes for weight in weights)
    assert size > 80_000_000
    assert allocated(profiled, set())[0] < 0.05 * size


def test_a_name_that_nobody_would_fill_is_an_error(tmp_path):
    prepare_transformers()
    folder = read_folder(write_language_model(tmp_path / "llama"), "option --model")
    model = LoraJobModel(DdpJobOptions(lora=4), folder, None, Communicator(World(), torch.device("cpu")))
    names = set(build_on_meta(folder, None).model.state_dict())
    assert base_weights(model.module, names).keys() == names
    with pytest.raises(RuntimeError, match=r"unknown names: \['model.new.weight'\]"):
        base_weights(model.module, names | {"model.new.weight"})
