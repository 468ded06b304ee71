"""How `submit --all` ends: its code and last object, and what it says of jobs that run on."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from algorun_client.aws.job_state import JobState
from algorun_client.common.errors import ApiError, Interrupted
from algorun_client.request.model import Kind
from algorun_client.submit.chain import chain_run, submit_all
from algorun_client.submit.chain.chain import Chain, Node
from algorun_client.submit.chain.chain_view import JsonChainView
from algorun_client.submit.place.place import HowPlaced, Placed, SubmitFlags
from algorun_client.submit.read.sweep import TaskSweep
from tests.client.submit.chain.test_chain_run import PACE
from tests.client.submit.specs import spec


@pytest.fixture
def carry_out(monkeypatch, capsys):
    """Carries out a sweep of one point with a job that runs; returns the code, the notes and the end."""

    def run(describe, placing=None, flags=None):
        task = spec("a.py", task="a")
        sweeps = {"a": TaskSweep(where="w", points=({"lr": "1"},))}
        chain = Chain(nodes=(Node(spec=task, table="a", after=()),), sweeps=sweeps)
        asked = SimpleNamespace(spec=task, reading=SimpleNamespace(known={"a": SimpleNamespace(metrics={}, best=None)}))
        plan = SimpleNamespace(chain=chain, asked={"a": asked}, of=lambda node: asked)
        place = SimpleNamespace(
            following=lambda: SimpleNamespace(sagemaker=None), pace=PACE, default_bucket=lambda: "b"
        )
        place.target = None
        connections = SimpleNamespace(of=lambda spec: place, environ={})

        def placed(*_, **options):
            if callable(placing):
                placing(**options)
            elif placing:
                raise placing
            return Placed(Kind.TRAINING, "p-a-0001", 1, HowPlaced.CREATED)

        monkeypatch.setattr(submit_all, "submit", placed)
        monkeypatch.setattr(submit_all, "describe", describe)
        code = submit_all.carry_out(plan, connections, flags or SubmitFlags(), JsonChainView(), 5.0, as_json=True)
        *events, end = map(json.loads, capsys.readouterr().out.splitlines())
        assert (end["event"], end["code"]) == ("end", code)
        return code, [each["text"] for each in events if each["event"] == "note"], end

    return run


def stopped(*_):
    raise KeyboardInterrupt


def test_ctrl_c_names_the_jobs_that_run_on_and_how_to_come_back(carry_out):
    code, _, end = carry_out(stopped)
    assert (code, end["kind"], end["source"]) == (130, "detached", "client")
    assert end["text"] == (
        "jobs that run on: p-a-0001; the same line goes on: it joins the jobs that run, and leaves out what is done"
    )
    _, _, end = carry_out(stopped, flags=SubmitFlags(force=True))
    assert "; the same line without --force and --clean-state goes on: " in end["text"]


def test_ctrl_c_while_a_job_is_sent_says_how_far_it_is(carry_out):
    _, _, end = carry_out(stopped, placing=Interrupted("no job was created; 3 of 9 objects are uploaded"))
    assert end["text"].startswith("no job was created; 3 of 9 objects are uploaded; the same line goes on")
    with pytest.raises(Interrupted) as stop:  # main ends the process at once
        carry_out(stopped, placing=Interrupted("parts may be left", hanging=True))
    assert stop.value.hanging
    assert str(stop.value).startswith("parts may be left; ")


@pytest.mark.parametrize("error", ["ExpiredToken", "EndpointConnectionError", "ThrottlingException"])
def test_contact_that_is_lost_while_jobs_run_is_75(carry_out, monkeypatch, error):
    monkeypatch.setattr(chain_run, "THROTTLED_S", 0.01)

    def describe(*_):
        raise ApiError(error, "no", "DescribeTrainingJob")

    code, _, end = carry_out(describe)
    assert (code, end["kind"]) == (75, "contact_lost")
    assert "; jobs that run on: p-a-0001; the same line goes on" in end["text"]


def test_a_table_that_cannot_be_read_changes_no_exit_code(carry_out, monkeypatch):
    def denied(*_):
        raise ApiError("AccessDenied", "no", "GetObject")

    monkeypatch.setattr(submit_all.sweep_results, "read_results", denied)
    completed = JobState(kind=Kind.TRAINING, job="p-a-0001", status="Completed")
    code, notes, end = carry_out(lambda *_: completed)
    assert (code, end["kind"], end["text"]) == (0, "completed", "1 of 1 jobs completed")
    assert notes == ["the results of a cannot be read: GetObject: AccessDenied: no; later: algorun results a"]


def test_a_lost_answer_does_not_clean_the_state_again_under_the_job_that_it_created(carry_out, monkeypatch):
    monkeypatch.setattr(submit_all, "show_results", lambda *_, **__: None)
    wishes = []

    def placing(*, flags, **_):
        wishes.append(flags)
        if len(wishes) == 1:
            raise ApiError("ReadTimeoutError", "no answer", "CreateTrainingJob")

    def describe(*_):
        return JobState(kind=Kind.TRAINING, job="p-a-0001", status="Completed")

    code, _, _ = carry_out(describe, placing, SubmitFlags(clean_state=True))
    assert code == 0
    assert wishes == [
        SubmitFlags(clean_state=True),
        SubmitFlags(force=True, lost=True),
    ]  # the second one joins the job that runs
