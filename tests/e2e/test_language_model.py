"""A language model of a Hugging Face folder on containers: two hosts, each replica sharded over the ranks of a host."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from containers import Hosts, show

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


def test_a_sharded_language_model_gives_one_loss_and_one_folder_under_every_engine(
    hosts: JobMaker, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    channels = {"model": write_language_model(tmp_path / "llama"), "train": write_text(tmp_path / "text")}
    losses, states = {}, {}
    for engine in ("native", "torchrun", "mpirun"):
        job = hosts(*TWO, hyperparameters=SMALL, environ={"ALGORUN_ENGINE": engine}, channels=channels)
        job.prepare()
        job.start()
        ends = job.end()
        assert [end.code for end in ends.values()] == [0, 0], show(TWO, ends)
        assert [end.failure for end in ends.values()] == [None, None]
        assert "sharded: over 2 ranks, 2 replicas" in ends["algo-1"].log
        losses[engine] = ends["algo-1"].first(r"ok nnodes=2 world_size=4 loss=(\d+\.\d+) accuracy=\d")
        written = {host: {path.name for path in (job.folder / host / "model").iterdir()} for host in TWO}
        assert written["algo-1"] >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
        assert written["algo-2"] == set(), "one host writes the folder, the leader"
        folder = job.folder / "algo-1" / "model"
        states[engine] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        assert AutoTokenizer.from_pretrained(folder)("one red")["input_ids"]
    assert len(set(losses.values())) == 1, losses
    assert float(losses["native"]) < math.log(300) - 1, "it has learned: a guess among 300 tokens costs ln 300"
    for engine, state in states.items():
        for name, weight in states["native"].items():
            torch.testing.assert_close(state[name], weight, msg=f"{engine}: {name}")
