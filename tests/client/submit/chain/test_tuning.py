"""A tuning with jobs in memory: a client that is killed at any write, two clients, early stops, and damaged objects."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest

from algorun.common.errors import UserError
from algorun_client.aws.job_state import InstanceGroups, JobState, JobTimes
from algorun_client.common.errors import ApiError
from algorun_client.follow import metric_values
from algorun_client.follow.log_reader import LogLine
from algorun_client.request.fingerprint import Fingerprint
from algorun_client.request.model import Kind, TaskAddress
from algorun_client.submit.chain import sweep_results, tuning
from algorun_client.submit.chain.chain import Chain, Node
from algorun_client.submit.chain.chain_run import ChainRun
from algorun_client.submit.chain.chain_view import JsonChainView
from algorun_client.submit.chain.next_jobs import Status
from algorun_client.submit.history import claims
from algorun_client.submit.look_up.upstreams import read_upstreams
from algorun_client.submit.place.place import HowPlaced, Placed
from algorun_client.submit.read import tune
from algorun_client.submit.read.source_tasks import Reading, SourceTask
from algorun_client.submit.read.sweep import Goal
from tests.client.submit.chain.test_chain_run import LIMIT, PACE
from tests.client.submit.place.memory import Killed, World
from tests.client.submit.specs import spec

pytest.importorskip("optuna")
ADDRESS = TaskAddress(bucket="b", project="vision", task="train")
METRICS = {"loss": "loss ([0-9.]+)"}
SPACE = {"lr": {"from": 1e-5, "to": 1e-1, "log": True}, "b": {"values": [16, 32]}}
MADE_OF = Fingerprint({"code": {"a.py": "1"}})


def table(points: int = 5, parallel: int = 1, **keys: object) -> tune.TaskTune:
    asked = {"goal": "min:loss", "points": points, "parallel": parallel, "space": SPACE, **keys}
    return tune.parse("algorun.toml [task.train.tune]", asked)


def loss(task: str) -> float:
    """Another one for each point."""
    return int.from_bytes(task.encode(), "big") % 997 / 1000


class Jobs(World):
    """Jobs that end after two looks. `fails`: the numbers of the points whose jobs fail."""

    def __init__(self, fails: tuple[int, ...] = (), slow: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.fails, self.slow = fails, slow
        self.looks: dict[str, int] = {}
        self.stopped: list[str] = []
        self.lock = threading.RLock()
        self.quota = 99
        self.paid_s: dict[str, int] = {}  # by job; an hour for the others
        self.kept_s: int | None = None  # of each job's hosts, once AWS has said that they are not kept any more

    def put(self, uri, content, **options):
        with self.lock:
            return super().put(uri, content, **options)

    def place(self, asked) -> Placed:
        """Claims and creates, as `submit` does."""
        address = TaskAddress(bucket="b", project="vision", task=asked.task)
        with self.lock:
            claim, state = claims.newest_job(self.target, address)
            if claim is not None and state is not None:
                return Placed(claim.kind, claim.job, claim.number, HowPlaced.DONE if state.ended else HowPlaced.JOINED)
            if sum(not self.state(job).ended for job in self.jobs) >= self.quota:
                raise ApiError("ResourceLimitExceeded", LIMIT.format(self.quota), "CreateTrainingJob")
            numbers = claims.numbers(self, address)
            job, number = f"{asked.task}-0001", 1
            content = {"kind": "training", "job": job, "create": {"Environment": {}}, "mirrors": []}
            if not numbers:  # else a client was killed after its claim
                self.put(claims.claim_uri(address, number), json.dumps(content).encode(), if_absent=True)
            self.create_training_job(TrainingJobName=job)
            return Placed(Kind.TRAINING, job, number, HowPlaced.CREATED)

    def state(self, job: str) -> JobState:
        order = list(self.jobs).index(job) + 1
        ended = self.looks.get(job, 0) > 2
        status = "Failed" if ended and order in self.fails else "Completed" if ended else "InProgress"
        status = "Stopped" if job in self.stopped else status
        times = JobTimes(
            billable_s=self.paid_s.get(job, 3600) if ended else None, kept_s=self.kept_s, keeping_has_ended=self.kept_s is not None
        )  # fmt: skip
        return JobState(
            kind=Kind.TRAINING, job=job, status=status, failure="exit: rank 0 on algo-1, exit 3, attempt 1: no",
            hosts=InstanceGroups((("ml.m5.large", 2),)), times=times,
        )  # fmt: skip

    def describe(self, kind: Kind, job: str) -> JobState:
        self.looks[job] = self.looks.get(job, 0) + 1
        return self.state(job)

    def describe_training_job(self, *, TrainingJobName: str):
        super().describe_training_job(TrainingJobName=TrainingJobName)
        state = self.state(TrainingJobName)
        return {"TrainingJobName": state.job, "TrainingJobStatus": state.status, "FailureReason": state.failure}

    def stop_training_job(self, *, TrainingJobName: str):
        self.moment()
        self.stopped.append(TrainingJobName)
        self.moment()

    def kept(self, what: str) -> list[dict[str, object]]:
        prefix = f"{ADDRESS.uri}/tune/0001/{what}/"
        return [json.loads(content) for uri, (content, _) in sorted(self.objects.items()) if uri.startswith(prefix)]

    @property
    def claimed(self) -> list[str]:
        return [uri.split("/")[-4] for uri in self.objects if uri.endswith("/request.json")]


@pytest.fixture(autouse=True)
def lines(monkeypatch):
    monkeypatch.setattr(
        metric_values, "job_lines", lambda _, state: iter([[LogLine("algo-1", "s", 1, f"loss {loss(state.job)}")]])
    )


def chain_run(world: Jobs, asked: tune.TaskTune, made_of=MADE_OF, anew: bool = False, **options: object) -> ChainRun:
    task = spec("a.py", "--lr", "1", "--b", "1", task="train", **options)
    nodes = (
        Node(spec=task, table="train", after=(), tune=asked), Node(spec=spec("b.py", task="eval"), table="eval", after=("train",)),
    )  # fmt: skip
    made = Chain(nodes=nodes, sweeps={}, tunes={"train": asked})

    def opened(_: Node) -> tuning.Tuning:
        return tuning.open_tuning(
            asked, world.target, ADDRESS, METRICS, made_of, anew=anew, grace_s=0.0, note=lambda text: print(text)
        )

    plan = SimpleNamespace(chain=made, of=lambda node: node.spec)
    return ChainRun(plan, world.place, world.describe, JsonChainView(), PACE, 5.0, opened)


def run(world: Jobs, asked: tune.TaskTune, **options: object) -> ChainRun:
    found = chain_run(world, asked, **options)
    found.run()
    return found


def test_points_come_one_by_one_and_what_reads_them_waits():
    world = Jobs()
    found = run(world, table())
    assert world.claimed[-1] == "eval"
    assert len(world.claimed) == 6
    assert found.status["train"] is found.status["eval"] is Status.COMPLETED
    ends = world.kept("ends")
    assert [float(str(end["value"])) for end in ends] == [loss(f"{task}-0001") for task in world.claimed[:-1]]


def test_a_client_that_is_killed_at_any_write_goes_on_with_the_same_points():
    undisturbed = Jobs()
    run(undisturbed, table())
    for moment in range(1, 200):
        world = Jobs()
        world.kill_at = moment
        try:
            run(world, table())
        except Killed:
            run(world, table())
        else:
            break
        assert world.kept("points") == undisturbed.kept("points")
        assert world.claimed == undisturbed.claimed  # each once
        assert world.creates == 6
        assert [end["ending"] for end in world.kept("ends")] == ["completed"] * 5
    assert 25 < moment < 199


def test_two_clients_of_one_line_choose_each_point_once():
    for _ in range(3):
        world, errors = Jobs(), []

        def client(world: Jobs = world, errors: list[BaseException] = errors) -> None:
            try:
                assert run(world, table(points=8, parallel=3)).status["train"] is Status.COMPLETED
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=client) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert len(world.kept("points")) == len(world.kept("ends")) == 8
        assert len(set(world.claimed)) == len(world.claimed) == world.creates == 9


def test_no_more_jobs_than_parallel_run_and_above_the_quota_they_wait():
    world = Jobs()
    world.quota = 2
    most = 0
    describe = world.describe

    def counted(kind, job):
        nonlocal most
        most = max(most, sum(not world.state(each).ended for each in world.jobs))
        return describe(kind, job)

    world.describe = counted
    assert run(world, table(points=8, parallel=3)).status["train"] is Status.COMPLETED
    assert most == 2
    assert len(world.claimed) == 9


def test_a_failed_point_is_no_end_and_is_not_run_again(capsys):
    world = Jobs(fails=(2,))
    found = run(world, table())
    assert (found.status["train"], found.faults) == (Status.COMPLETED, [])
    assert [end["ending"] for end in world.kept("ends")] == ["completed", "failed", *["completed"] * 3]
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (text,) = (each["text"] for each in said if each.get("task") == "train" and each["status"] == "completed")
    assert text == f"4 completed, 1 failed of 5 points; failed: {world.claimed[1]}"
    assert run(world, table(points=6)).status["train"] is Status.COMPLETED
    assert len(world.claimed) == world.creates == 7


PRICED = {"toml": 'price = { "ml.m5.large" = 0.5 }', "instance": "ml.m5.large", "hosts": "2", "max_run": "2h"}


@pytest.mark.parametrize(
    ("limit", "parallel", "tried"),
    [
        ("2", 1, 1),  # one job costs at most 2.00 and in the end 1.00: a second one could bring it to 3.00
        ("4", 1, 3),
        ("4", 4, 3),  # two at the beginning, and then one more
        ("9", 2, 5),
    ],
)
def test_all_points_together_cost_no_more_than_the_limit(limit, parallel, tried, capsys):
    world = Jobs()
    found = run(world, table(points=5, parallel=parallel), max_cost=limit, **PRICED)
    assert len(world.claimed) == tried + 1  # and the task that reads the best of them
    assert found.status["train"] is Status.COMPLETED
    said = "" if tried == 5 else (
        f"; {5 - tried} of 5 points were not tried: they could cost more than --max-cost {limit}.00: {tried}.00 so far, and one "
        "more job up to 2.00"
    )  # fmt: skip
    told = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line.get("task") == "train"]
    assert told[-1]["text"] == f"{tried} completed of {tried} points{said}"


@pytest.mark.parametrize(("kept_s", "tried"), [(None, 4), (1800, 5), (0, 7)])
def test_hosts_that_are_kept_count_until_they_are_not_kept_any_more(kept_s, tried):
    """A job costs 1.00, and its hosts up to 1.00 more for an hour in which they are kept; at most 3.00 in all."""
    world = Jobs()
    world.kept_s = kept_s
    run(world, table(points=9), max_cost="9", keep_alive="1h", **PRICED)
    assert len(world.claimed) == tried + 1


@pytest.mark.slow
def test_a_later_client_counts_what_was_paid_and_what_runs():
    """Whenever the first one was killed, both together try as many points as one alone."""
    for moment in range(1, 200):
        world = Jobs()
        world.kill_at = moment
        try:
            run(world, table(points=9, parallel=2), max_cost="6", **PRICED)
        except Killed:
            run(world, table(points=9, parallel=2), max_cost="6", **PRICED)
        else:
            break
        assert len(world.claimed) == 6, moment
    assert len(world.claimed) == 6
    assert 25 < moment < 199


def test_nothing_is_left_to_try_below_a_lower_limit_and_the_price_of_jobs_on_this_machine_is_none():
    world = Jobs()
    run(world, table(points=2), max_cost="9", **PRICED)
    found = run(world, table(points=4), max_cost="3", **PRICED)
    assert len(world.claimed) == 3
    assert found.status["train"] is Status.COMPLETED
    run(other := Jobs(), table(points=4), max_cost="3", where="local", **PRICED)
    assert len(other.claimed) == 5


def test_three_failures_at_the_beginning_end_it_and_what_reads_it_is_left_out():
    world = Jobs(fails=(1, 2, 3))
    for _ in range(2):  # the second client finds the same in the bucket
        found = run(world, table())
        assert found.status["train"] is Status.FAILED
        assert found.status["eval"] is Status.LEFT_OUT
        (fault,) = found.faults
        assert (fault.task, fault.code, fault.kind) == ("train", 3, "failed")
        assert "its first 3 points have all failed" in fault.text
        assert "exit: rank 0" in fault.text
    assert len(world.claimed) == 3
    world.fails = ()
    assert run(world, table(), made_of=Fingerprint({"code": {"a.py": "2"}})).status["train"] is not Status.FAILED


def test_a_late_failure_of_three_is_no_reason_to_end():
    world = Jobs(fails=(2, 3, 4))
    assert run(world, table()).status["train"] is Status.COMPLETED


def test_another_table_is_refused_with_what_differs():
    world = Jobs()
    run(world, table())
    with pytest.raises(
        UserError, match=r"begun with another table: seed was 0, is 1; fix: take the change back.*--force begins"
    ):
        tuning.check_begun(table(seed=1), world.target, ADDRESS)
    tuning.check_begun(table(points=50, parallel=4), world.target, ADDRESS)  # neither decides which points are chosen
    assert run(world, table(seed=1)).faults[0].code == 64
    found = run(world, table(seed=1), anew=True)
    assert found.status["train"] is Status.COMPLETED
    assert found.tunings["train"].begun.number == 2


def test_other_code_begins_it_anew_and_what_cannot_be_compared_does_not(capsys):
    world = Jobs()
    run(world, table())
    unknown = Fingerprint({"code": {"a.py": "1"}}, ("in.x: cannot be listed",))
    assert run(world, table(), made_of=unknown).tunings["train"].begun.number == 1
    assert run(world, table(), made_of=Fingerprint({"code": {"a.py": "2"}})).tunings["train"].begun.number == 2
    assert "train: tunes anew, because of what has changed: " in capsys.readouterr().out


class Curves:
    """A reader of jobs that have printed a value a look; the loss of the first point is the lowest."""

    def __init__(self, world: Jobs) -> None:
        self.world = world

    def __call__(self, logs, kind, job):
        told = 0

        def read_all():
            nonlocal told
            now, order = self.world.looks.get(job, 0), list(self.world.jobs).index(job)
            for host in ("algo-2", "algo-1"):  # each host prints them
                yield [LogLine(host, "s", step, f"loss {order}.{step}") for step in range(told + 1, now + 1)]
            told = now

        return SimpleNamespace(read_all=read_all)


HYPERBAND = {"method": "hyperband", "steps": 9, "points": 6}


def test_a_point_that_lags_behind_is_stopped_and_no_failure(monkeypatch, capsys):
    world = Jobs()
    monkeypatch.setattr(tuning, "LogReader", Curves(world))
    found = run(world, table(**HYPERBAND))
    endings = [end["ending"] for end in world.kept("ends")]
    assert endings[0] == "completed"
    assert endings.count("stopped early") == len(world.stopped) > 0
    early = endings.index("stopped early")
    assert world.kept("ends")[early]["curve"] == [[1, early + 0.1]]
    assert found.status["train"] is Status.COMPLETED
    assert [found.status[task] for task in world.claimed[:-1]] == [Status(str(each)) for each in endings]
    before = dict(world.objects)
    run(world, table(**HYPERBAND))
    assert world.objects == before
    swept = sweep_results.swept(world.target, ADDRESS, None, table(**HYPERBAND))
    rows = sweep_results.read_results(world.target, ADDRESS, swept, METRICS, Goal("loss", lowest=True), PACE).rows
    assert sorted(row.status for row in rows) == sorted(
        "Stopped early" if each == "stopped early" else "Completed" for each in endings
    )


def test_a_point_that_is_worse_than_the_median_is_stopped_once_five_have_ended(monkeypatch):
    world = Jobs()
    monkeypatch.setattr(tuning, "LogReader", Curves(world))
    run(world, table(points=8, stop="median", steps=9))
    assert [end["ending"] for end in world.kept("ends")] == ["completed"] * 5 + ["stopped early"] * 3


@pytest.mark.slow
def test_a_client_that_is_killed_at_any_write_while_it_stops_points(monkeypatch):
    """Also between the note that a point is stopped and the stop itself."""
    killed_between = 0
    for moment in range(1, 200):
        world = Jobs()
        monkeypatch.setattr(tuning, "LogReader", Curves(world))
        world.kill_at = moment
        try:
            run(world, table(**HYPERBAND))
        except Killed:
            noted = sum(end["ending"] == "stopped early" for end in world.kept("ends"))
            killed_between += noted > len(world.stopped)
            run(world, table(**HYPERBAND))
        else:
            break
        assert len(set(world.claimed)) == len(world.claimed) == world.creates == 7
        early = [str(end["job"]) for end in world.kept("ends") if end["ending"] == "stopped early"]
        assert set(early) == set(world.stopped)
        assert all(end["ending"] != "failed" for end in world.kept("ends"))
    assert killed_between >= 1


def test_the_best_point_is_what_another_task_reads():
    world = Jobs(fails=(1,))
    run(world, table())
    known = {"train": SourceTask(table="train", is_tuned=True, best=Goal("loss", lowest=True), metrics=METRICS)}
    task = spec("a.py", "{task:train/loss}", **{"in": ["m=task:train/model"]})
    upstreams, values = read_upstreams(world.target, task, "b", Reading(known=known))
    best = min((task for task in world.claimed[1:-1]), key=lambda each: loss(f"{each}-0001"))
    assert upstreams["train"].task == best
    assert list(values.values()) == [str(loss(f"{best}-0001"))]
    with pytest.raises(
        UserError,
        match="task 'train' is tuned, and none of its 0 points has completed; fix: algorun submit --task train",
    ):
        read_upstreams(Jobs().target, task, "b", Reading(known=known))


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("points/0002.json", b"{", "is damaged"),
        ("points/0002.json", b'{"format": 9}', "has format 9: another version of algorun has written it"),
        ("points/0002.json", b'{"format": 1, "parameters": {"lr": 3}, "after": 0}', "3 is no text"),
        ("ends/0001.json", b'{"format": 1, "ending": "won"}', "is damaged"),
        ("begun.json", b'{"format": 1, "asked": []}', "is damaged"),
    ],
)
def test_a_damaged_object_is_one_error_that_says_what_to_remove(name, content, error):
    world = Jobs()
    run(world, table())
    uri = f"{ADDRESS.uri}/tune/0001/{name}"
    world.objects[uri] = (content, "")
    with pytest.raises(UserError, match=error) as found:
        tuning.points_so_far(world.target, ADDRESS)
    assert found.value.where == uri
