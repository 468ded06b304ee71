"""The launch in real containers: docker/compose.yaml as users start it. `make test-all PART=containers`."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from containers import IMAGE, REPOSITORY, Hosts, Left, compose_command, docker, give_back, left, show

pytestmark = pytest.mark.docker

TWO = ("algo-1", "algo-2")
JobMaker = Callable[..., Hosts]
Compose = Callable[..., dict[str, Left]]


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    """Runs docker/compose.yaml as the README says, with its settings from the environment; returns both hosts' ends."""
    projects: list[tuple[list[str], dict[str, str]]] = []

    def run(hyperparameters: str, limit_s: float = 300.0, **settings: str) -> dict[str, Left]:
        project = f"algoruntest{uuid.uuid4().hex[:10]}"
        folder = tmp_path / project
        environ = dict(os.environ, ALGORUN_IMAGE=IMAGE, HOSTS_FOLDER=str(folder), HYPERPARAMETERS=hyperparameters)
        command = [*compose_command(), "-p", project, "-f", str(REPOSITORY / "docker" / "compose.yaml")]
        projects.append((command, environ | settings))
        _compose(*projects[-1], "up", "-d")
        containers = {host: _compose(*projects[-1], "ps", "-q", "-a", host).strip() for host in TWO}
        return {host: left(containers[host], folder / host, limit_s) for host in TWO}

    yield run
    for command, environ in projects:
        _compose(command, environ, "down", "-v", "-t", "0")
        project = f"label=com.docker.compose.project={command[command.index('-p') + 1]}"
        assert docker("ps", "-aq", "--filter", project) == docker("network", "ls", "-q", "--filter", project) == ""
    give_back(tmp_path)


def _compose(command: list[str], environ: dict[str, str], *argv: str) -> str:
    if argv[:2] == ("ps", "-q") and command[0] != "docker":
        argv = tuple(word for word in argv if word != "-a")  # 1.29 lists ended containers anyway
    done = subprocess.run([*command, *argv], env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- training -------------------------------------------------------------------------------------------------------


def test_ddp_gives_the_same_loss_under_every_engine(compose: Compose, tmp_path: Path) -> None:
    losses = {}
    for engine in ("native", "torchrun", "mpirun"):
        ends = compose("sagemaker_program=ddp epochs=3 warmup-epochs=1", ALGORUN_ENGINE=engine)
        assert [end.code for end in ends.values()] == [0, 0], show(TWO, ends)
        assert [end.failure for end in ends.values()] == [None, None]
        losses[engine] = ends["algo-1"].first(r"ok nnodes=2 world_size=4 loss=(\d+\.\d+) accuracy=\d")
    assert len(set(losses.values())) == 1, losses
    for folder in tmp_path.iterdir():
        written = [path for host in TWO for path in (folder / host / "model").iterdir()]
        assert (folder / "algo-1" / "model" / "model.pt").is_file()
        assert all("algo-1" in path.parts for path in written), "one host writes the artifact, the leader"


def test_ddp_on_image_folders_of_mixed_files(hosts: JobMaker, digit_images: Path) -> None:
    files = [path for path in digit_images.rglob("*.*") if path.is_file()]
    assert len(files) >= 2000
    assert {path.suffix for path in files} == {".png", ".jpg", ".jpeg"}
    job = hosts(
        *TWO,
        hyperparameters={
            "sagemaker_program": "ddp",
            "model": "convnet",
            "image_size": "8",
            "epochs": "5",
            "batch_size": "8",
        },
        channels={split: digit_images / split for split in ("train", "validation")},
    )
    job.prepare()
    job.start()
    ends = job.end(limit_s=600)
    assert [end.code for end in ends.values()] == [0, 0], show(TWO, ends)
    assert float(ends["algo-1"].first(r"ok nnodes=2 world_size=4 loss=\S+ accuracy=(\d\.\d+)")) >= 0.95
    assert (job.folder / "algo-1" / "model" / "model.pt").is_file()


# The error without mpirun is in `make test`: train/jobs/test_mpi_basics.py.
@pytest.mark.slow(but=["mpirun"])
@pytest.mark.parametrize("engine", ["native", "torchrun", "mpirun"])
def test_mpi_basics_on_three_hosts(hosts: JobMaker, engine: str) -> None:
    names = (*TWO, "algo-3")
    job = hosts(*names, hyperparameters={"sagemaker_program": "mpi-basics"}, environ={"ALGORUN_ENGINE": engine})
    job.prepare()
    job.start()
    ends = job.end()
    code = 0 if engine == "mpirun" else 64
    assert [end.code for end in ends.values()] == [code] * 3, show(names, ends)
    ends["algo-1"].first(r"ok nnodes=3 world_size=6" if engine == "mpirun" else "mpi-basics was not started by mpirun")


# ---- the image's commands -------------------------------------------------------------------------------------------


def test_train_is_what_the_image_does_by_itself(hosts: JobMaker) -> None:
    seen = []
    for command in ((), ("train",)):
        job = hosts("algo-1", hyperparameters={"sagemaker_program": "hello.py", "lr": "0.1"})
        job.prepare("hello.py")
        job.start(*command)
        end = job.end()["algo-1"]
        assert end.code == 0, end.log
        seen.append(sorted(line for line in end.log.splitlines() if "hello from" in line))
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2
    assert "['--lr', '0.1']" in seen[0][0]


def test_broken_json_is_one_clear_error(hosts: JobMaker) -> None:
    job = hosts(*TWO)
    job.prepare()
    broken = "input/config/resourceconfig.json"
    for name in TWO:
        (job.folder / name / broken).write_text('{"current_host": "algo-1", ')
    job.start()
    ends = job.end(limit_s=30)
    assert [end.code for end in ends.values()] == [64, 64], show(TWO, ends)
    for end in ends.values():
        assert end.failure
        assert "resourceconfig.json" in end.failure
        assert "is not JSON" in end.failure
        assert end.failure.splitlines()[0].partition("exit 64: ")[2] in end.log
