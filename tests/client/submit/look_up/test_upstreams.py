"""What a task reads of other tasks: the best point of a sweep, values of metrics, and what is missing."""

from __future__ import annotations

import json

import pytest

from algorun.common.errors import UserError
from algorun_client.follow import metric_values
from algorun_client.follow.log_reader import LogLine
from algorun_client.request.model import TaskAddress
from algorun_client.submit.chain.chain import SourceTask
from algorun_client.submit.history.claims import claim_uri
from algorun_client.submit.look_up.upstreams import Reading, read_upstreams
from algorun_client.submit.read.source_tasks import Reference
from algorun_client.submit.read.sweep import Goal
from tests.client.submit.place.memory import World
from tests.client.submit.specs import spec

METRICS = {"accuracy": r"acc ([0-9.]+)"}
POINTS = ("train.lr-1", "train.lr-2", "train.lr-3")


@pytest.fixture
def world(monkeypatch):
    made = World()
    made.status = "Completed"
    made.said = {}

    def lines(target, state):
        yield [LogLine("algo-1", "algo-1-1", 1, text) for text in made.said.get(state.job, ())]

    monkeypatch.setattr(metric_values, "job_lines", lines)
    return made


def executed(world, task: str, *said: str) -> None:
    """A completed job of a task, and its lines."""
    address, job = TaskAddress(bucket="b", project="vision", task=task), f"{task}-job"
    claim = {"kind": "training", "job": job, "create": {"Environment": {}}, "mirrors": []}
    world.objects[claim_uri(address, 1)] = (json.dumps(claim).encode(), "")
    world.jobs[job] = {"TrainingJobName": job}
    world.said[job] = said


def reading(best: Goal | None = None, **values: object) -> Reading:
    points = {name: SourceTask(table="train", metrics=METRICS) for name in POINTS}
    return Reading(
        known={"train": SourceTask(table="train", points=POINTS, best=best, metrics=METRICS), **points}, **values
    )


def read(world, task, known):
    return read_upstreams(world.target, task, "b", known)


@pytest.mark.parametrize(("lowest", "best"), [(False, 2), (True, 1)])
def test_of_a_sweep_the_best_point_is_read(world, lowest, best):
    for name, value in zip(POINTS, ("0.2", "0.1", "0.9"), strict=True):
        executed(world, name, f"acc {value}")
    task = spec("a.py", "{task:train/accuracy}", **{"in": ["m=task:train/model"]})
    upstreams, values = read(world, task, reading(Goal("accuracy", lowest=lowest)))
    assert (upstreams["train"].task, upstreams["train"].job) == (POINTS[best], f"{POINTS[best]}-job")
    assert values == {Reference("train", "accuracy"): ("0.1" if lowest else "0.9")}


def test_a_point_without_the_metric_is_never_the_best(world):
    for name, said in zip(POINTS, ("acc 0.2", "nothing", "acc nan"), strict=True):
        executed(world, name, said)
    upstreams, _ = read(world, spec("a.py", **{"in": ["m=task:train/model"]}), reading(Goal("accuracy", lowest=True)))
    assert upstreams["train"].task == POINTS[0]


@pytest.mark.parametrize(
    ("points", "error"),
    [
        (
            POINTS[:2],
            "--in m: task 'train.lr-3' has no completed job; fix: algorun submit --task train$",
        ),
        (POINTS, "--in m: job train.lr-1-job and 2 other jobs never printed a number for metric 'accuracy'"),
    ],
)
def test_an_unfinished_or_silent_sweep_feeds_nothing(world, points, error):
    for name in points:
        executed(world, name, "nothing")
    with pytest.raises(UserError, match=error):
        read(world, spec("a.py", **{"in": ["m=task:train/model"]}), reading(Goal("accuracy", lowest=False)))


def test_what_runs_later_in_the_chain_is_not_looked_up(world):
    task = spec("a.py", "{task:train/accuracy}", **{"in": ["m=task:train/model"]})
    assert read(world, task, reading(Goal("accuracy", lowest=False), later=("train",))) == ({}, {})


def test_a_task_outside_of_the_job_file_has_the_metrics_that_sagemaker_knows(world):
    executed(world, "old", "acc 0.5")
    definitions = [{"Name": "accuracy", "Regex": METRICS["accuracy"]}]
    world.jobs["old-job"]["AlgorithmSpecification"] = {"MetricDefinitions": definitions}
    assert read(world, spec("a.py", "{task:old/accuracy}"), Reading())[1] == {Reference("old", "accuracy"): "0.5"}
    with pytest.raises(UserError, match="arguments of task 'a': task 'old' has no metric 'loss'; allowed: accuracy"):
        read(world, spec("a.py", "{task:old/loss}"), Reading())
