"""Whether a task is done, from its claims and jobs; task.json only spares calls."""

from __future__ import annotations

import dataclasses
import json

import pytest

from algorun.common.errors import UserError
from algorun_client.common.errors import ApiError
from algorun_client.common.progress import Silent
from algorun_client.request.fingerprint import Fingerprint
from algorun_client.request.model import Kind
from algorun_client.submit.history import done, task_file
from algorun_client.submit.history.task_file import Completed, TaskFile
from algorun_client.submit.place import state_folder
from algorun_client.submit.place.send import send
from tests.client.submit.place.memory import Killed, World
from tests.client.submit.place.requests import ADDRESS, maker

FILE = f"{ADDRESS.uri}/task.json"
ONE, TWO = Fingerprint({"options": {"lr": "0.1"}}), Fingerprint({"options": {"lr": "0.2"}})


class Account(World):
    """Each job has a status of its own."""

    def __init__(self):
        super().__init__()
        self.ends = {}
        self.described = []

    def describe_training_job(self, *, TrainingJobName):
        self.described.append(TrainingJobName)
        return {
            **super().describe_training_job(TrainingJobName=TrainingJobName),
            "TrainingJobStatus": self.ends.get(TrainingJobName, "InProgress"),
        }


def sent(world, argument="1", mark=ONE, ends="Completed", **options):
    made = maker(argument, files={})
    request = send(
        world.target,
        ADDRESS,
        lambda number: dataclasses.replace(made(number), fingerprint=mark),
        Silent(),
        **options,
    ).request
    world.ends[request.job] = ends
    return request


def test_the_newest_completed_execution_counts_whatever_came_after_it():
    world = Account()
    assert done.look(world.target, ADDRESS).completed is None
    sent(world, mark=ONE)
    sent(world, "2", mark=TWO)
    sent(world, "3", ends="Failed")
    found = done.look(world.target, ADDRESS)
    assert found.completed == Completed(2, Kind.TRAINING, "p-t-0002")
    assert done.changes(world.target.store, ADDRESS, found.completed, TWO) == ()
    assert done.changes(world.target.store, ADDRESS, found.completed, ONE) == ("lr: was 0.2, is 0.1",)
    assert found.running is None
    sent(world, "4", ends="InProgress")
    found = done.look(world.target, ADDRESS)
    assert (found.running.job, found.completed.job) == ("p-t-0004", "p-t-0002")


def test_the_fingerprint_is_there_before_the_job():
    """Killed at any moment: a job that exists has one."""
    for moment in range(1, 100):
        world = Account()
        world.kill_at = moment
        try:
            sent(world)
        except Killed:
            if world.jobs:
                assert done.fingerprint_of(world.target.store, ADDRESS, 1) == ONE
        else:
            return
    raise AssertionError("never finished")


def test_old_executions_are_asked_once():
    world = Account()
    for number in range(1, 6):
        sent(world, str(number), ends="Completed" if number == 2 else "Failed")
    world.described.clear()
    found = done.look(world.target, ADDRESS)
    assert len(world.described) == 4
    assert found.is_new
    task_file.write(world.target.store, ADDRESS, found.known)
    world.described.clear()
    again = done.look(world.target, ADDRESS)
    assert (again.completed, again.is_new, world.described) == (found.completed, False, [])
    sent(world, "6", ends="Completed")
    assert done.look(world.target, ADDRESS).completed.number == 6


def test_an_execution_that_may_still_get_its_job_is_not_settled():
    world = Account()
    sent(world, "1", ends="Failed")
    world.kill_at = world._moment + 3  # after the claim
    with pytest.raises(Killed):
        sent(world, "2")
    world.kill_at = -1
    assert done.look(world.target, ADDRESS).known == TaskFile(settled=1)


def test_an_execution_whose_folder_was_removed_does_not_count():
    world = Account()
    sent(world, "1")
    sent(world, "2")
    task_file.write(world.target.store, ADDRESS, done.look(world.target, ADDRESS).known)
    for uri in [uri for uri in world.objects if "/jobs/0002/" in uri]:
        del world.objects[uri]
    assert done.look(world.target, ADDRESS).completed.number == 1


def test_without_a_fingerprint_nobody_knows():
    world = Account()
    sent(world, mark=None)
    found = done.look(world.target, ADDRESS)
    assert done.changes(world.target.store, ADDRESS, found.completed, ONE) == (done.UNKNOWN,)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "task.json: is damaged .*; fix: remove this object"),
        (b"[]", "task.json: is damaged"),
        (b'{"format": 1, "project": "p", "task": "t", "settled": "x", "done": null}', "task.json: is damaged"),
        (b'{"format": 1, "project": "p", "task": "t", "settled": Infinity, "done": null}', "task.json: is damaged"),
        pytest.param(
            b"[" * 100_000,
            "task.json: is damaged .TooDeepError: nested deeper than 200 levels.; fix: remove this object",
            id="deep",
        ),
        (b'{"format": 2, "project": "p", "task": "t"}', "task.json: has format 2: another version.*; fix: install"),
        (b'{"format": 1, "project": "p", "task": "u", "settled": 0, "done": null}', "task.json: is of task p/u"),
    ],
)
def test_a_damaged_file_is_one_error(content, text):
    world = Account()
    world.objects[FILE] = (content, "")
    with pytest.raises(UserError, match=text):
        done.look(world.target, ADDRESS)


@pytest.mark.parametrize("content", [b"{}", b"[" * 100_000], ids=["empty", "deep"])
def test_a_damaged_fingerprint_is_one_error(content):
    world = Account()
    sent(world)
    world.objects[ADDRESS.fingerprint(1)] = (content, "")
    with pytest.raises(UserError, match="fingerprint.json: is damaged .*; fix: remove this object"):
        done.fingerprint_of(world.target.store, ADDRESS, 1)


def test_a_client_that_may_not_write_does_without_the_file(monkeypatch):
    world = Account()

    def put(*_, **__):
        raise ApiError("AccessDenied", "no", "PutObject")

    monkeypatch.setattr(world, "put", put)
    task_file.write(world.target.store, ADDRESS, TaskFile(3))
    assert FILE not in world.objects


def test_the_file_holds_names_and_what_is_done():
    world = Account()
    task_file.write(world.target.store, ADDRESS, TaskFile(3, Completed(2, Kind.TRAINING, "p-t-0002")))
    assert json.loads(world.get(FILE)) == {
        "format": 1,
        "project": "p",
        "task": "t",
        "settled": 3,
        "done": {"number": 2, "kind": "training", "job": "p-t-0002"},
    }
    assert task_file.read_task_file(world.target.store, ADDRESS) == TaskFile(3, Completed(2, Kind.TRAINING, "p-t-0002"))


def state(world, *names):
    for name in names:
        world.objects[ADDRESS.uri + "/" + name] = (b"12", "")


def test_the_state_is_cleaned_for_this_task_alone_and_only_before_its_own_job():
    world = Account()
    state(world, "state/algo-1/a", "state/algo-2/b", "state/c", "state-2/d", "../tt/state/e")
    sent(world, ends="InProgress")
    with pytest.raises(UserError, match="--clean-state: job p-t-0001 runs, and writes this state; fix: `algorun stop"):
        sent(world, clean_state=True)
    assert f"{ADDRESS.state}c" in world.objects
    world.ends["p-t-0001"] = "Stopped"
    sent(world, clean_state=True)
    assert [uri for uri in world.objects if uri.startswith(ADDRESS.state)] == []
    assert f"{ADDRESS.uri}/state-2/d" in world.objects
    assert f"{ADDRESS.uri}/../tt/state/e" in world.objects


def test_the_state_of_a_job_that_a_slow_client_has_created_meanwhile_is_kept():
    world = Account()
    state(world, "state/algo-1/a")
    world.kill_at = world._moment + 3  # after the claim
    with pytest.raises(Killed):
        sent(world)
    world.kill_at = -1
    put = world.put

    def overtaken(uri, content, **options):
        etag = put(uri, content, **options)
        if uri.endswith("/decision"):  # of the line that goes on: the first one wakes up
            world.jobs.setdefault("p-t-0001", maker("1", files={})(1).create)
        return etag

    world.put = overtaken
    with pytest.raises(UserError, match="--clean-state: job p-t-0001 runs"):
        sent(world, clean_state=True)
    assert f"{ADDRESS.state}algo-1/a" in world.objects


def test_a_client_killed_at_any_moment_of_a_clean_rerun_makes_one_job_more():
    for moment in range(1, 100):
        world = Account()
        sent(world)
        state(world, "state/algo-1/a", "state/algo-2/b")
        world.kill_at = world._moment + moment
        try:
            sent(world, clean_state=True, ends="InProgress")
        except Killed:
            world.kill_at = -1
            if "p-t-0002" in world.jobs:
                with pytest.raises(UserError, match="--clean-state: job p-t-0002 runs"):
                    sent(world, clean_state=True)
            else:
                sent(world, clean_state=True, ends="InProgress")
        else:
            assert moment > 10
            return
        assert list(world.jobs) == ["p-t-0001", "p-t-0002"]
        assert not [uri for uri in world.objects if uri.startswith(ADDRESS.state)]
    raise AssertionError("never finished")


def test_the_state_is_kept_if_no_job_comes(monkeypatch):
    world = Account()
    state(world, "state/algo-1/a")
    sent(world, "1", ends="InProgress")
    with pytest.raises(UserError, match="still runs, with another request"):
        sent(world, "2", clean_state=True)
    assert f"{ADDRESS.state}algo-1/a" in world.objects


def test_the_folders_of_a_state():
    world = Account()
    state(world, "state/algo-1/a", "state/algo-1/x/b", "state/algo-10/c", "state/d", "state-2/e")
    found = state_folder.folders(world.target.store, ADDRESS)
    assert [(each.name, each.files, each.size) for each in found] == [("", 1, 2), ("algo-1", 2, 4), ("algo-10", 1, 2)]
    assert state_folder.clean(world.target.store, ADDRESS, "algo-1") == 2
    assert [each.name for each in state_folder.folders(world.target.store, ADDRESS)] == ["", "algo-10"]


def test_executions_that_were_removed_leave_no_memory_that_hides_later_ones():
    """Whoever removes `jobs/` begins with execution 1 again: what task.json settles is about other executions."""
    world = Account()
    for number in range(1, 4):
        sent(world, str(number), ends="Failed")
    task_file.write(world.target.store, ADDRESS, done.look(world.target, ADDRESS).known)
    world.target.store.delete_all([each.uri for each in world.target.store.list(f"{ADDRESS.uri}/jobs/")])
    world.jobs.clear()
    again = sent(world, "4", ends="InProgress")
    found = done.look(world.target, ADDRESS)
    assert found.running is not None
    assert found.running.job == again.job
    world.ends[again.job] = "Completed"
    assert done.look(world.target, ADDRESS).completed == Completed(1, Kind.TRAINING, again.job)
