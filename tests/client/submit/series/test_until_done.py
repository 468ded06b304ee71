"""`--until-done` with jobs in memory: which ends go on, what counts as progress, and a client that was killed."""

from __future__ import annotations

import dataclasses

import pytest

from algorun_client.aws.job_state import JobState
from algorun_client.follow import follower
from algorun_client.request.model import Kind
from algorun_client.submit.series import job_series
from algorun_client.submit.series.next_job import end_of_hosts
from tests.client.submit.place.memory import Killed
from tests.client.submit.series.planned_jobs import CAPACITY, DONE, LIMIT, LOST, End, PlannedWorld, client, step

__all__ = ["client"]


def writing(end: End, *names: str) -> End:
    return dataclasses.replace(end, writes=names)


@pytest.mark.parametrize(
    ("status", "detail", "failure", "text"),
    [
        ("Stopped", "MaxRuntimeExceeded", "", "ran out of time"),
        ("Stopped", "MaxWaitTimeExceeded", "", "ran out of time"),
        ("Stopped", "Interrupted", "", "lost its spot instances"),
        ("Stopped", "Stopped", "", ""),
        ("Completed", "Completed", "", ""),
        ("Failed", "Failed", "CapacityError: Unable to provision", "found no free instances"),
        ("Failed", "Failed", "InternalServerError: We encountered an internal error. Please try again.", "was ended by an error of SageMaker's"),
        ("Failed", "Failed", "AlgorithmError: lost: algo-2, exit 66: host lost: connection closed, exit code: 66", "lost a host"),
        ("Failed", "Failed", "AlgorithmError: own words\nnode: algo-2, exit 66: its node has ended, exit code: 66", "lost a host"),
        ("Failed", "Failed", "AlgorithmError: gate: algo-3, exit 65: did not connect, exit code: 65", "missed a host"),
        ("Failed", "Failed", "AlgorithmError: exit: rank 0 on algo-1, exit 66, attempt 1: my own 66, exit code: 66", ""),
        ("Failed", "Failed", "AlgorithmError: budget: algo-2, exit 68: ValueError at train.py:6 on algo-2 has ended attempts 1 and 2", ""),
        ("Failed", "Failed", "AlgorithmError: exit: rank 0 on algo-1, exit 3, attempt 1: lost: algo-2, exit 66: x", ""),
        ("Failed", "Failed", "AlgorithmError: hang: rank 0 on algo-1, exit 67: no step, exit code: 67", ""),
        ("Failed", "Failed", "AlgorithmError: ExecuteUserScriptError, exit code: 66", ""),
        ("Failed", "Failed", "ResourceLimitExceeded: above the limit", ""),
        ("Failed", "Failed", "ClientError: no such image", ""),
    ],
)  # fmt: skip
def test_only_the_ends_of_hosts_go_on(status, detail, failure, text):
    state = JobState(kind=Kind.TRAINING, job="j", status=status, detail=detail, failure=failure)
    assert end_of_hosts(state) == text


def test_jobs_go_on_until_the_task_is_done(client):
    client.world = PlannedWorld(writing(LIMIT, "a"), writing(LOST, "b"), writing(CAPACITY), writing(LIMIT, "c"), DONE)
    assert client("--until-done") == 0
    said = client.said
    assert client.world.creates == 5
    assert "(exit 74); it left 1 file of state (it found no state); cost so far 2.00\n" in said
    assert "lost a host (exit 66); it left 2 files of state (it found 1 file of state); cost so far 4.00\n" in said
    assert "found no free instances (exit 73); cost so far 4.00\n" in said
    assert said.splitlines()[-2] == "algorun: 5 jobs, billable 4 h 0 min on each host, cost 8.00"
    assert said.splitlines()[-1].endswith("has completed: exit 0, kind=completed source=job")
    assert client("--until-done") == 0  # done already
    assert (client.world.creates, "done already by" in client.said) == (5, True)


def test_json_ends_once(client):
    client.world = PlannedWorld(writing(LIMIT, step(5)), writing(LIMIT, step(9)), DONE)
    assert client("--until-done", "--json") == 0
    assert [each["event"] for each in client.events if each["event"] in ("sent", "next_job", "jobs", "end")] == [
        "sent", "next_job", "sent", "next_job", "sent", "jobs", "end",
    ]  # fmt: skip
    assert client.events_of("next_job")[1]["text"].endswith(
        "ran out of time (exit 74); it left a checkpoint of step 9 (it found a checkpoint of step 5); cost so far 4.00"
    )
    assert client.events_of("jobs") == [{"event": "jobs", "jobs": 3, "billable_s": 10800, "cost": 6.0}]


def test_two_jobs_in_a_row_without_progress_end_it(client):
    client.world = PlannedWorld(writing(LIMIT, "a"), LOST, writing(LIMIT, "b"), LOST, LIMIT, DONE)
    assert client("--until-done") == 74
    assert client.world.creates == 5
    assert (
        "algorun: --until-done ends: 2 jobs in a row have left the state as they found it (2 files of state), so another one "
        "would too; the same line tries once more\n" in client.said
    )
    assert client("--until-done") == 0
    assert client.world.creates == 6


def test_of_algorun_s_own_checkpoints_only_a_later_step_is_progress(client):
    """A log in the state changes with every job."""
    client.world = PlannedWorld(writing(LIMIT, step(5), "x1"), writing(LIMIT, "x2"), writing(LIMIT, "x3"), DONE)
    assert client("--until-done") == 74
    assert client.world.creates == 3
    assert "(a checkpoint of step 5), so another one would too" in client.said


def test_a_task_without_any_state_would_begin_from_zero_each_time(client):
    client.world = PlannedWorld(LIMIT, DONE)
    assert client("--until-done") == 74
    assert client.world.creates == 1
    assert "has left nothing in its checkpoint folder: the next one would begin from zero; fix: write" in client.said


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (End("Failed", "Failed", "AlgorithmError: exit: rank 0 on algo-1, exit 3, attempt 1: no, exit code: 3", ("a",)), 3),
        (End("Failed", "Failed", "AlgorithmError: exit: rank 0 on algo-1, exit 66: mine, exit code: 66", ("a",)), 66),
        (End("Stopped", "Stopped", "", ("a",)), 74),
    ],
)  # fmt: skip
def test_a_final_end_is_not_repeated(client, end, code):
    client.world = PlannedWorld(end, DONE)
    assert client("--until-done") == code
    assert client.world.creates == 1


def test_without_the_option_nothing_goes_on(client):
    client.world = PlannedWorld(writing(LIMIT, "a"), DONE)
    assert client() == 74
    assert client.world.creates == 1
    assert not [uri for uri in client.world.objects if uri.endswith("begin.json")]


def test_a_job_file_may_ask_for_it_and_a_flag_may_refuse_it(client):
    (client.folder / "algorun.toml").write_text("until_done = true\n")
    client.world = PlannedWorld(writing(LIMIT, "a"), writing(LIMIT, "b"), DONE)
    assert client("--no-until-done") == 74
    assert client() == 0
    assert client.world.creates == 3


@pytest.mark.slow(but=["1"])
@pytest.mark.parametrize("first", range(1, 9))
def test_a_client_that_is_killed_at_any_moment_goes_on_and_makes_each_job_once(client, first):
    plan = (writing(LIMIT, "a"), writing(LOST, "b"), DONE)
    client.world = PlannedWorld(*plan)
    assert client("--until-done") == 0
    moments = client.world._moment
    assert moments > 20
    for moment in range(first, moments + 1, 8):
        client.world = PlannedWorld(*plan)
        client.world.kill_at = moment
        with pytest.raises(Killed):
            client("--until-done")
        assert client("--until-done") == 0, moment
        assert client.world.creates == 3, moment


def test_barren_jobs_of_a_killed_client_count(client, monkeypatch):
    client.world = PlannedWorld(writing(LIMIT, "a"), LIMIT, LIMIT, DONE)
    ends_of, calls = job_series.ends_of, []

    def killed_at_the_second_end(*words):
        calls.append(1)
        if len(calls) == 2:
            raise Killed
        return ends_of(*words)

    monkeypatch.setattr(job_series, "ends_of", killed_at_the_second_end)
    with pytest.raises(Killed):
        client("--until-done")
    assert client("--until-done") == 74
    assert client.world.creates == 3
    assert "2 jobs in a row" in client.said
    assert "algorun: 3 jobs, billable 3 h 0 min on each host, cost 6.00\n" in client.said


def test_ctrl_c_prints_the_line_that_goes_on(client, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    client.world = PlannedWorld(writing(LIMIT, "a"), DONE)
    with monkeypatch.context() as patch:
        patch.setattr(follower.Follower, "run", interrupted)
        assert client("--until-done", "--clean-state") == 130
    line = "algorun submit --where local --instance ml.g5.2xlarge --until-done --force train.py"
    assert f"algorun: come back with: {line}\n" in client.said
    assert client("--until-done", "--force") == 0
    assert client.world.creates == 2


def test_another_request_begins_a_new_count(client):
    """The same one would end after one more barren job."""
    client.world = PlannedWorld(writing(LIMIT, "a"), LIMIT, LIMIT, LIMIT, DONE)
    assert client("--until-done") == 74
    assert client("--until-done", "--max-run", "2h") == 0
    assert client.world.creates == 5


def test_max_cost_bounds_all_jobs_together(client):
    (client.folder / "algorun.toml").write_text('price = { "ml.g5.2xlarge" = 2 }\nproject = "images"\n')
    client.world = PlannedWorld(writing(LIMIT, "a"), writing(LIMIT, "b"), writing(LIMIT, "c"), DONE)
    assert client("--until-done", "--max-run", "1h", "--max-cost", "5") == 64
    assert client.world.creates == 2
    assert (
        "--max-cost: the jobs so far cost 4.00, and the next one may cost 2.00; allowed: up to 5.00 for all"
        in client.said
    )
    assert "come back with: algorun submit" in client.said
    assert client("--until-done", "--max-run", "1h", "--max-cost", "5") == 64  # and so does the next client
    assert client.world.creates == 2


def test_a_job_of_unknown_time_counts_with_its_most(client):
    unknown = dataclasses.replace(LIMIT, billable_s=None)
    client.world = PlannedWorld(writing(unknown, "a"), writing(unknown, "b"), writing(LIMIT, "c"), DONE)
    assert client("--until-done", "--max-run", "1h", "--max-cost", "5") == 64
    assert client.world.creates == 2
    assert "--max-cost: the jobs so far cost up to 4.00 (2 of them can still cost more, or nobody knows" in client.said


def test_hosts_that_are_kept_for_the_next_job_count(client):
    """Each job costs 2.00, and its hosts 2.00 more in the hour in which they may be kept."""
    client.world = PlannedWorld(*(writing(LIMIT, name) for name in "abcd"), DONE)
    assert client("--until-done", "--max-run", "1h", "--keep-alive", "1h", "--max-cost", "10") == 64
    assert client.world.creates == 2
    assert "the jobs so far cost up to 8.00 (2 of them can still" in client.said


def test_an_earlier_job_on_hosts_without_a_price_is_named(client):
    client.world = PlannedWorld(writing(LIMIT, "a"), writing(LIMIT, "b"), DONE)
    client.world.earlier_type = "ml.p3.2xlarge"
    assert client("--until-done", "--max-run", "1h", "--max-cost", "5") == 64
    assert client.world.creates == 1
    assert "-0001-" in client.said
    assert "cost is unknown: the price of ml.p3.2xlarge is missing; fix: price = " in client.said


def test_jobs_on_this_machine_cost_nothing(client):
    client.world = PlannedWorld(*(writing(LIMIT, name) for name in "abcd"), DONE)
    client.world.host_kind = "simulated hosts"
    assert client("--until-done", "--max-run", "1h", "--max-cost", "1") == 0
    assert client.world.creates == 5


def test_a_state_that_is_removed_begins_anew(client):
    client.world = PlannedWorld(writing(LIMIT, step(5)), LIMIT, LIMIT, writing(LIMIT, step(3)), DONE)
    assert client("--until-done") == 74
    assert client("--until-done", "--clean-state") == 0
    assert client.world.creates == 5


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("--until-done", "--detach"),
            "--detach: with --until-done later jobs have to be created when earlier ones end",
        ),
        (("--until-done", "--kind", "processing"), "--until-done: is for training tasks"),
    ],
)
def test_what_cannot_go_on_is_refused(client, words, error):
    assert client(*words) == 64
    assert error in client.said
    assert client.world.puts == []


def test_jobs_of_a_chain_go_on_too(client):
    (client.folder / "algorun.toml").write_text(
        'until_done = true\nprice = { "ml.g5.2xlarge" = 2 }\n[task.train]\nrun = ["train.py"]\n'
        '[task.later]\nrun = ["train.py"]\nin.m = "task:train/state"\n'
    )
    client.world = PlannedWorld(writing(LIMIT, "a"), LOST, writing(LIMIT, "b"), DONE, DONE)
    assert client("--all", "--clean-state", program=()) == 0
    jobs = [name.partition("images-")[2][:-12] for name in client.world.jobs]
    assert jobs == ["train", "train", "train", "train", "later"]
    assert "algorun: train: waiting: job images-train-0001-" in client.said
    assert "ran out of time (exit 74); it left 1 file of state (it found no state); cost so far 2.00\n" in client.said
    assert client.said.splitlines()[-1].startswith("algorun: 2 of 2 jobs completed: exit 0")


def test_a_task_of_a_chain_without_progress_fails(client):
    (client.folder / "algorun.toml").write_text('until_done = true\n[task.train]\nrun = ["train.py"]\n')
    client.world = PlannedWorld(writing(LIMIT, "a"), LIMIT, LIMIT, DONE)
    assert client("--all", program=()) == 74
    assert client.world.creates == 3
    assert "algorun: train: --until-done ends: 2 jobs in a row" in client.said
