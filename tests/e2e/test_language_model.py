"""A language model of a Hugging Face folder on containers: two hosts, each replica sharded, or one tensor group, on a host."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from containers import Hosts, jobs, show

from tests.train.model_folders import write_language_model, write_text

pytestmark = pytest.mark.docker

TWO = ("algo-1", "algo-2")
JobMaker = Callable[..., Hosts]
SMALL = {
    "sagemaker_program": "ddp",
    "context": "32",
    "epochs": "2",
    "warmup_epochs": "0",
    "batch_size": "4",
}
FORMS = {
    "shard": "sharded: over 2 ranks, 2 replicas",
    "tp": "tensor parallel: 2 ranks compute each layer together",
}  # each with 2, and what the log says


@dataclass(frozen=True, slots=True)
class Trained:
    """The loss that a job says, and the weights of the folder that it leaves."""

    loss: str
    state: dict[str, Any]


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("channels")
    return {"model": write_language_model(base / "llama"), "train": write_text(base / "text")}


def trained(hosts: JobMaker, channels: dict[str, Path], engine: str, form: str) -> Trained:
    """Runs the job, and reads the folder that it leaves with transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    job = hosts(*TWO, hyperparameters={**SMALL, form: "2"}, environ={"ALGORUN_ENGINE": engine}, channels=channels)
    job.prepare()
    job.start()
    ends = job.end()
    assert [end.code for end in ends.values()] == [0, 0], show(TWO, ends)
    assert [end.failure for end in ends.values()] == [None, None]
    assert FORMS[form] in ends["algo-1"].log
    written = {host: {path.name for path in (job.folder / host / "model").iterdir()} for host in TWO}
    assert written["algo-1"] >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert written["algo-2"] == set(), "one host writes the folder, the leader"
    folder = job.folder / "algo-1" / "model"
    assert AutoTokenizer.from_pretrained(folder)("one red")["input_ids"]
    loss = ends["algo-1"].first(r"ok nnodes=2 world_size=4 loss=(\d+\.\d+) accuracy=\d")
    return Trained(loss, AutoModelForCausalLM.from_pretrained(folder).state_dict())


@pytest.fixture(scope="module")
def native(channels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Trained]]:
    """What each form of the job gives under the engine native, in one run for each."""
    with jobs(tmp_path_factory.mktemp("native")) as hosts:
        yield functools.cache(lambda form: trained(hosts, channels, "native", form))


@pytest.mark.slow(but=["mpirun-shard"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ["torchrun", "mpirun"])
def test_every_engine_gives_the_loss_and_the_folder_of_native(
    hosts: JobMaker, channels: dict[str, Path], native: Callable[[str], Trained], engine: str, form: str
) -> None:
    import torch

    alone, found = native(form), trained(hosts, channels, engine, form)
    assert float(alone.loss) < math.log(300) - 1, "it has learned: a guess among 300 tokens costs ln 300"
    assert found.loss == alone.loss
    for name, weight in alone.state.items():
        torch.testing.assert_close(found.state[name], weight, msg=name)
