"""The launch in real containers: docker/compose.yaml as users start it, and jobs with faults. `make test-all PART=containers`.

Seconds and exit codes are those of docs/chaos.md: whatever fails, all hosts leave within 5 s.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from containers import IMAGE, REPOSITORY, Hosts, Left, compose_command, docker, give_back, left, show

pytestmark = pytest.mark.docker

LEAVE_S = 5.0
STOP_S = 10.0  # a stop also lets the step end, saves a checkpoint and takes four interpreters with torch down
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


# ---- faults: all hosts leave in time, with the same root cause ------------------------------------------------------
# tests/chaos has every fault under every engine. Here an engine starts its ranks in another container: each engine once, each
# host as the one that is lost and the one that is stopped.


def test_a_rank_that_raises_on_the_second_host(hosts: JobMaker) -> None:
    job = hosts(*TWO, hyperparameters={"sagemaker_program": "raises_on_last.py"}, environ={"ALGORUN_ENGINE": "mpirun"})
    job.prepare("raises_on_last.py")
    job.start()
    ends = job.end(limit_s=120)
    raised = float(" ".join(end.log for end in ends.values()).split("raising at ")[1].split()[0])
    assert [end.code for end in ends.values()] == [1, 1], show(TWO, ends)
    seconds = max(end.finished for end in ends.values()) - raised
    print(f"\nmpirun: all hosts left {seconds:.2f} s after the exception; {ends['algo-1'].failure}")
    assert seconds <= LEAVE_S, show(TWO, ends)
    failures = {end.failure for end in ends.values()}
    assert len(failures) == 1, failures
    text = str(failures.pop())
    assert "rank 3 on algo-2" in text.splitlines()[0]
    assert "ValueError: bad batch 17" in text.splitlines()[0]
    assert 'raises_on_last.py", line' in text
    assert len(text) <= 1024


@pytest.mark.parametrize(
    ("engine", "victim"), [("native", "algo-1"), ("torchrun", "algo-2"), ("mpirun", "algo-1"), ("mpirun", "algo-2")]
)
def test_a_killed_container(hosts: JobMaker, engine: str, victim: str) -> None:
    job = hosts(*TWO, hyperparameters={"sagemaker_program": "waits.py"}, environ={"ALGORUN_ENGINE": engine})
    job.prepare("waits.py")
    job.start()
    job.wait_for(r"rank \d of 4 waits")
    docker("kill", job.container(victim))
    ends = job.end(limit_s=60)
    survivor = next(name for name in TWO if name != victim)
    assert ends[victim].code == 137
    assert ends[victim].failure is None
    assert ends[survivor].code == 66, show(TWO, ends)
    seconds = ends[survivor].finished - ends[victim].finished
    print(f"\n{engine}: {survivor} left {seconds:.2f} s after {victim} was killed; {ends[survivor].failure}")
    assert seconds <= LEAVE_S
    assert victim in str(ends[survivor].failure).splitlines()[0]


@pytest.mark.parametrize(("stopped", "engine"), [("algo-1", "torchrun"), ("algo-2", "native"), ("algo-2", "mpirun")])
def test_docker_stop_on_one_host_ends_all_with_a_checkpoint(hosts: JobMaker, stopped: str, engine: str) -> None:
    job = hosts(
        *TWO,
        hyperparameters={"sagemaker_program": "ddp", "epochs": "500", "log_interval": "5"},
        environ={"ALGORUN_ENGINE": engine},
    )
    job.prepare()
    job.start()
    _until_training(job)
    container = job.container(stopped)
    before = time.time()  # Docker's stamps are of the same clock
    docker("stop", "--time", "60", container)
    ends = job.end(limit_s=60)
    assert [end.code for end in ends.values()] == [0, 0], show(TWO, ends)
    assert [end.failure for end in ends.values()] == [None, None]
    seconds = max(end.finished for end in ends.values()) - before
    print(f"\nmpirun: all hosts left {seconds:.2f} s after `docker stop` of {stopped}")
    assert seconds <= STOP_S, show(TWO, ends)
    checkpoints = job.folder / "algo-1" / "checkpoints"
    assert list(checkpoints.glob("step-*/part-0000-of-0001.json")), list(checkpoints.rglob("*"))


def _until_training(job: Hosts) -> None:
    """Until the leader has printed a training loss."""
    leader = Hosts(job.folder, job.names[:1], run=job.run)
    leader.wait_for(r"train_loss: \d", limit_s=120)
