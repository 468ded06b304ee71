"""Jobs with faults in real containers: all hosts leave in time, with the same root cause. `make test PART=container-faults`.

Seconds and exit codes are those of docs/chaos.md: whatever fails, all hosts leave within 5 s. So nothing else may run beside these
tests. tests/chaos has every fault under every engine. Here an engine starts its ranks in another container: each engine once, each
host as the one that is lost and the one that is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from containers import Hosts, docker, show

pytestmark = pytest.mark.docker

LEAVE_S = 5.0
STOP_S = 10.0  # a stop also lets the step end, saves a checkpoint and takes four interpreters with torch down
TWO = ("algo-1", "algo-2")
JobMaker = Callable[..., Hosts]


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
    print(f"\n{engine}: all hosts left {seconds:.2f} s after `docker stop` of {stopped}")
    assert seconds <= STOP_S, show(TWO, ends)
    checkpoints = job.folder / "algo-1" / "checkpoints"
    assert list(checkpoints.glob("step-*/part-0000-of-0001.json")), list(checkpoints.rglob("*"))


def _until_training(job: Hosts) -> None:
    """Until the leader has printed a training loss."""
    leader = Hosts(job.folder, job.names[:1], run=job.run)
    leader.wait_for(r"train_loss: \d", limit_s=120)
