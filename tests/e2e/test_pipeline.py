"""Pipeline stages on containers: two hosts, every engine, and the layout of 4 stages x 2 replicas on 8 ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from containers import REPOSITORY, Hosts, jobs, show

pytestmark = pytest.mark.docker

TWO = ("algo-1", "algo-2")
JobMaker = Callable[..., Hosts]
# Text of a tenth of the embedded one's size.
SMALL = {
    "sagemaker_program": "pipeline",
    "epochs": "1",
    "width": "32",
    "heads": "2",
    "context": "256",
    "batch_size": "128",
}


@dataclass(frozen=True, slots=True)
class Trained:
    """What a job of two pipelines of two stages leaves."""

    loss: str
    partition: str
    """of the model into stages, as JSON"""

    @property
    def begins(self) -> Any:
        return json.loads(self.partition)["decision"]["begins"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A channel of text."""
    folder = tmp_path_factory.mktemp("text")
    for source in sorted((REPOSITORY / "launcher").rglob("*.py")):
        shutil.copy(source, folder / source.with_suffix(".txt").name)
    return {"train": folder}


def trained(hosts: JobMaker, text: dict[str, Path], engine: str, partition: str = "") -> Trained:
    """Runs the job; with the partition of an earlier one, for times differ from run to run, and with them the cuts."""
    job = hosts(
        *TWO,
        hyperparameters=SMALL | {"pp": "2", "depth": "2", "microbatches": "8", "partition": "/opt/ml/code/p.json"},
        environ={"ALGORUN_ENGINE": engine},
        channels=text,
    )
    job.prepare()
    if partition:
        for host in TWO:
            (job.folder / host / "code" / "p.json").write_text(partition)
    job.start()
    ends = job.end()
    assert [end.code for end in ends.values()] == [0, 0], show(TWO, ends)
    assert [end.failure for end in ends.values()] == [None, None]
    assert "2 pipelines of 2 ranks (cluster), 2 stages, schedule 1f1b, 8 microbatches" in ends["algo-1"].log
    written = {host: sorted(p.name for p in (job.folder / host / "model").iterdir()) for host in TWO}
    assert written == {"algo-1": ["model.json", "model.pt"], "algo-2": []}
    loss = ends["algo-1"].first(r"ok nnodes=2 world_size=4 loss=(\d+\.\d+) accuracy=\d")
    return Trained(loss, (job.folder / "algo-1" / "code" / "p.json").read_text())


@pytest.fixture(scope="module")
def native(text: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    with jobs(tmp_path_factory.mktemp("native")) as hosts:
        yield trained(hosts, text, "native")


@pytest.mark.slow(but=["torchrun"])
@pytest.mark.parametrize("engine", ["torchrun", "mpirun"])
def test_two_pipelines_of_two_stages_give_the_loss_of_native(
    hosts: JobMaker, text: dict[str, Path], native: Trained, engine: str
) -> None:
    found = trained(hosts, text, engine, native.partition)
    assert found.loss == native.loss
    assert found.begins == native.begins


# Layouts of eight ranks are in train/jobs/test_folder_layouts.py.
@pytest.mark.slow
def test_four_stages_x_two_replicas_on_eight_ranks(hosts: JobMaker, text: dict[str, Path]) -> None:
    mp_parameters = {"partitions": 4, "microbatches": 8, "pipeline": "interleaved", "optimize": "speed", "ddp": True}
    job = hosts(
        *TWO, slots=4, hyperparameters=SMALL | {"depth": "4", "mp_parameters": json.dumps(mp_parameters)}, channels=text
    )
    job.prepare()
    job.start()
    ends = job.end(limit_s=400)
    assert [end.code for end in ends.values()] == [0, 0], show(TWO, ends)
    assert "2 pipelines of 4 ranks (cluster), 4 stages, schedule 1f1b, 8 microbatches of 16" in ends["algo-1"].log
    assert ends["algo-1"].first(r"ok nnodes=2 world_size=8 loss=\S+")
    assert (job.folder / "algo-1" / "model" / "model.pt").is_file()
