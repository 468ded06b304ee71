"""A language model of a Hugging Face folder on containers: two hosts, each replica sharded over the ranks of a host."""

from __future__ import annotations

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
    "shard": "2",
    "context": "32",
    "epochs": "2",
    "warmup_epochs": "0",
    "batch_size": "4",
}


@dataclass(frozen=True, slots=True)
class Trained:
    """The loss that a job says, and the weights of the folder that it leaves."""

    loss: str
    state: dict[str, Any]


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("channels")
    return {"model": write_language_model(base / "llama"), "train": write_text(base / "text")}


def trained(hosts: JobMaker, channels: dict[str, Path], engine: str) -> Trained:
    """Runs the job, and reads the folder that it leaves with transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    job = hosts(*TWO, hyperparameters=SMALL, environ={"ALGORUN_ENGINE": engine}, channels=channels)
    job.prepare()
    job.start()
    ends = job.end()
    assert [end.code for end in ends.values()] == [0, 0], show(TWO, ends)
    assert [end.failure for end in ends.values()] == [None, None]
    assert "sharded: over 2 ranks, 2 replicas" in ends["algo-1"].log
    written = {host: {path.name for path in (job.folder / host / "model").iterdir()} for host in TWO}
    assert written["algo-1"] >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert written["algo-2"] == set(), "one host writes the folder, the leader"
    folder = job.folder / "algo-1" / "model"
    assert AutoTokenizer.from_pretrained(folder)("one red")["input_ids"]
    loss = ends["algo-1"].first(r"ok nnodes=2 world_size=4 loss=(\d+\.\d+) accuracy=\d")
    return Trained(loss, AutoModelForCausalLM.from_pretrained(folder).state_dict())


@pytest.fixture(scope="module")
def native(channels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    with jobs(tmp_path_factory.mktemp("native")) as hosts:
        yield trained(hosts, channels, "native")


@pytest.mark.slow(but=["mpirun"])
@pytest.mark.parametrize("engine", ["torchrun", "mpirun"])
def test_a_sharded_language_model_gives_the_loss_and_the_folder_of_native(
    hosts: JobMaker, channels: dict[str, Path], native: Trained, engine: str
) -> None:
    import torch

    assert float(native.loss) < math.log(300) - 1, "it has learned: a guess among 300 tokens costs ln 300"
    found = trained(hosts, channels, engine)
    assert found.loss == native.loss
    for name, weight in native.state.items():
        torch.testing.assert_close(found.state[name], weight, msg=name)
