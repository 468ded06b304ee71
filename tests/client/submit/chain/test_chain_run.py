"""Chains with jobs in memory: what starts when, what is left out, the quota, and a client that was killed."""

from __future__ import annotations

import dataclasses
import json
import time
from types import SimpleNamespace

import pytest

from algorun.common.errors import UserError
from algorun_client.aws.job_state import JobState
from algorun_client.common.errors import ApiError
from algorun_client.common.refusals import Unanswered
from algorun_client.connection import PollTimes
from algorun_client.request.model import Kind
from algorun_client.submit.chain import chain_run
from algorun_client.submit.chain.chain import Chain, Node
from algorun_client.submit.chain.chain_run import ChainRun
from algorun_client.submit.chain.chain_view import JsonChainView
from algorun_client.submit.place.place import HowPlaced, Placed
from algorun_client.submit.read.sweep import TaskSweep
from tests.client.submit.specs import spec

PACE = PollTimes(state_s=0.001, silence_s=0.02, stream_s=0.0)
LIMIT = "The account-level service limit 'ml.m5.large for training job usage' is {} Instances, with current utilization of 2 Instances and a request delta of 1 Instances."


def chain(text: str, **sweeps: int) -> Chain:
    """`a b>a`: b reads a. `sweeps`: the numbers of points of a table, and how many run at once."""
    nodes, made = [], {}
    for word in text.split():
        name, _, after = word.partition(">")
        names = [name]
        if name in sweeps:
            points = tuple({"lr": str(n)} for n in range(4))
            made[name] = TaskSweep(where="w", points=points, parallel=sweeps[name] or None)
            names = [f"{name}.{n}" for n in range(4)]
        reads = tuple(each for each in after.split(",") if each)
        nodes += [Node(spec=spec("a.py", task=each), table=name, after=reads) for each in names]
    return Chain(nodes=tuple(nodes), sweeps=made)


class Jobs:
    """Jobs that end after two looks. `quota`: so many may run."""

    def __init__(self, quota: int = 99, fails: tuple[str, ...] = ()) -> None:
        self.quota, self.fails = quota, fails
        self.looks: dict[str, int] = {}
        self.most, self.refused = 0, 0
        self.limit = 2
        self.failure = "AlgorithmError: rank 0 on algo-1, exit 3: no, exit code: 3"

    def place(self, asked) -> Placed:
        task = asked.task
        if task in self.looks:
            how = HowPlaced.DONE if self.looks[task] > 2 and task not in self.fails else HowPlaced.JOINED
            if how is HowPlaced.DONE or self.looks[task] <= 2:
                return Placed(Kind.TRAINING, task, 1, how)
        if len(self.running) >= self.quota:
            self.refused += 1
            raise ApiError("ResourceLimitExceeded", LIMIT.format(self.limit), "CreateTrainingJob")
        self.looks[task] = 0
        self.most = max(self.most, len(self.running))
        return Placed(Kind.TRAINING, task, 1, HowPlaced.CREATED)

    @property
    def running(self) -> list[str]:
        return [task for task, looks in self.looks.items() if looks <= 2]

    def describe(self, kind: Kind, job: str) -> JobState:
        self.looks[job] += 1
        status = "InProgress" if self.looks[job] <= 2 else "Failed" if job in self.fails else "Completed"
        return JobState(kind=kind, job=job, status=status, failure=self.failure)


def run(made: Chain, jobs: Jobs, queue_s: float = 5.0) -> ChainRun:
    plan = SimpleNamespace(chain=made, of=lambda node: node.spec)
    found = ChainRun(plan, jobs.place, jobs.describe, JsonChainView(), PACE, queue_s)
    found.run()
    return found


def statuses(found: ChainRun) -> dict[str, str]:
    return {task: status.value for task, status in found.status.items()}


def test_each_task_starts_when_what_it_reads_has_completed(capsys):
    jobs = Jobs()
    found = run(chain("data c train>data eval>train,c"), jobs)
    assert set(statuses(found).values()) == {"completed"}
    assert list(jobs.looks) == ["data", "c", "train", "eval"]
    assert jobs.most == 2  # data and c beside each other
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["task"] for each in events if each.get("status") == "completed"] == ["data", "c", "train", "eval"]


def test_what_reads_a_failed_task_is_never_created_and_the_rest_goes_on():
    jobs = Jobs(fails=("train",))
    found = run(chain("data train>data eval>train last>eval other"), jobs)
    assert statuses(found) == {
        "data": "completed",
        "train": "failed",
        "eval": "left out",
        "last": "left out",
        "other": "completed",
    }
    assert set(jobs.looks) == {"data", "train", "other"}
    (fault,) = found.faults
    assert (fault.task, fault.code, fault.kind, fault.source.value) == ("train", 3, "failed", "job")
    jobs.fails = ()
    jobs.looks["train"] = 3
    again = run(chain("data train>data eval>train last>eval other"), jobs)
    assert set(statuses(again).values()) == {"completed"}


def test_a_sweep_has_no_more_jobs_than_it_says():
    jobs = Jobs()
    found = run(chain("train eval>train", train=2), jobs)
    assert set(statuses(found).values()) == {"completed"}
    assert jobs.most == 2


def test_one_failed_point_feeds_nothing_and_stops_no_other():
    found = run(chain("train eval>train", train=0), Jobs(fails=("train.1",)))
    assert sorted(statuses(found).values()) == ["completed"] * 3 + ["failed", "left out"]


def test_a_sweep_of_four_with_quota_two_never_has_three_running():
    jobs = Jobs(quota=2)
    found = run(chain("train", train=0), jobs)
    assert (set(statuses(found).values()), jobs.most) == ({"completed"}, 2)
    assert jobs.refused >= 1


def test_a_queue_has_a_deadline(monkeypatch):
    monkeypatch.setattr(chain_run, "POLLS_BETWEEN_TRIES", 1)
    found = run(chain("a b"), Jobs(quota=0), queue_s=0.02)
    assert statuses(found) == {"a": "failed", "b": "failed"}
    assert {(fault.code, fault.kind) for fault in found.faults} == {(72, "quota")}
    assert "the account's quota allowed no " in found.faults[0].text


def test_what_never_fits_is_not_waited_for():
    jobs = Jobs(quota=0)
    jobs.limit = 0
    found = run(chain("a"), jobs, queue_s=99)
    assert (jobs.refused, found.faults[0].code) == (1, 72)


@pytest.mark.parametrize("dies_after", range(1, 12))
def test_a_client_that_is_killed_goes_on_where_it_was(dies_after):
    """After any number of calls: no job is made twice, and everything completes."""
    jobs, calls, created = Jobs(quota=2), 0, []

    def counted(call):
        def made(*words):
            nonlocal calls
            calls += 1
            if calls == dies_after:
                raise KeyboardInterrupt
            found = call(*words)
            if isinstance(found, Placed) and found.how is HowPlaced.CREATED:
                created.append(found.job)
            return found

        return made

    made = chain("data train>data eval>train", train=0)
    plan = SimpleNamespace(chain=made, of=lambda node: node.spec)
    with pytest.raises(KeyboardInterrupt):
        ChainRun(plan, counted(jobs.place), counted(jobs.describe), JsonChainView(), PACE, 5.0).run()
    found = ChainRun(plan, counted(jobs.place), jobs.describe, JsonChainView(), PACE, 5.0)
    found.run()
    assert set(statuses(found).values()) == {"completed"}
    assert sorted(created) == sorted(set(created)) == sorted(node.spec.task for node in made.nodes)


def test_a_job_that_ends_above_a_quota_is_not_sent_for_ever():
    jobs = Jobs(fails=("a",))
    jobs.failure = "ResourceLimitExceeded: no"
    (fault,) = run(chain("a"), jobs).faults
    assert (fault.code, fault.kind, fault.job) == (72, "quota", "a")


@pytest.mark.parametrize("error", [
    ApiError("ThrottlingException", "Rate exceeded", "CreateTrainingJob"),
    ApiError("EndpointConnectionError", "no route", "CreateTrainingJob"),
    Unanswered("AWS", "EndpointConnectionError: no route", code=75),
])  # fmt: skip
def test_a_short_silence_while_a_job_is_created_ends_nothing(error, capsys):
    jobs, left = Jobs(), [error]

    def place(asked):
        if asked.task == "b" and left:
            raise left.pop()
        return jobs.place(asked)

    plan = SimpleNamespace(chain=chain("a b>a"), of=lambda node: node.spec)
    found = ChainRun(plan, place, jobs.describe, JsonChainView(), PACE, 5.0)
    found.run()
    assert set(statuses(found).values()) == {"completed"}
    notes = [each["text"] for each in map(json.loads, capsys.readouterr().out.splitlines()) if each["event"] == "note"]
    assert len(notes) == 2
    assert notes[1] == "AWS answers again"


def test_throttling_without_end_has_a_deadline_and_rounds_that_succeed_reset_it(monkeypatch):
    monkeypatch.setattr(chain_run, "THROTTLED_S", 0.05)
    jobs, rounds = Jobs(), []

    def describe(kind, job):
        rounds.append(job)
        if len(rounds) % 3 or time.monotonic() > end:
            raise ApiError("ThrottlingException", "Rate exceeded", "DescribeTrainingJob")
        return JobState(kind=kind, job=job, status="InProgress")

    plan = SimpleNamespace(chain=chain("a"), of=lambda node: node.spec)
    begin = time.monotonic()
    end = begin + 0.2
    with pytest.raises(UserError, match="Rate exceeded") as error:
        ChainRun(plan, jobs.place, describe, JsonChainView(), PACE, 5.0).run()
    assert error.value.code == 75
    assert time.monotonic() - begin > 0.2


def test_without_credentials_the_command_ends_at_once():
    def place(asked):
        raise ApiError("ExpiredToken", "The provided token has expired", "PutObject")

    plan = SimpleNamespace(chain=chain("a"), of=lambda node: node.spec)
    with pytest.raises(Unanswered) as error:
        ChainRun(plan, place, Jobs().describe, JsonChainView(), PACE, 5.0).run()
    assert error.value.code == 71


def test_bad_input_of_one_task_fails_that_task():
    jobs = Jobs()

    def place(asked):
        if asked.task == "b":
            raise UserError("the arguments", "job a never printed a number for metric 'x'", fix="look")
        return jobs.place(asked)

    plan = SimpleNamespace(chain=chain("a b>a c>b"), of=lambda node: node.spec)
    found = ChainRun(plan, place, jobs.describe, JsonChainView(), PACE, 5.0)
    found.run()
    assert statuses(found) == {"a": "completed", "b": "failed", "c": "left out"}
    assert (found.faults[0].code, found.faults[0].source.value) == (64, "client")


def test_without_answers_the_command_ends_and_jobs_run_on():
    jobs = Jobs()

    def silent(kind, job):
        raise ApiError("EndpointConnectionError", "no route", "DescribeTrainingJob")

    plan = SimpleNamespace(chain=chain("a"), of=lambda node: node.spec)
    found = ChainRun(plan, jobs.place, silent, JsonChainView(), PACE, 5.0)
    with pytest.raises(Unanswered) as error:
        found.run()
    assert (error.value.code, found.running) == (75, ["a"])


def test_spot_instances_have_a_quota_of_their_own():
    jobs, tried = Jobs(), []
    made = chain("a b")
    on_spot = dataclasses.replace(made.nodes[0].spec.resources, spot=True)
    first = dataclasses.replace(made.nodes[0], spec=dataclasses.replace(made.nodes[0].spec, resources=on_spot))

    def place(asked) -> Placed:
        tried.append(asked.task)
        if tried.count("a") == 1 and asked.task == "a":
            raise ApiError("ResourceLimitExceeded", LIMIT.format(2), "CreateTrainingJob")
        return jobs.place(asked)

    plan = SimpleNamespace(chain=Chain(nodes=(first, made.nodes[1]), sweeps={}), of=lambda node: node.spec)
    ChainRun(plan, place, jobs.describe, JsonChainView(), PACE, 5.0).run()
    assert tried == ["a", "b", "a"]  # b does not wait for what a lacks
