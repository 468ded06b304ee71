"""Several kinds of hosts with jobs in memory: what is refused, what is next, and that the task is done whichever it was."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.client.submit.place.memory import Killed
from tests.client.submit.series.planned_jobs import CAPACITY, DONE, LIMIT, End, PlannedWorld, client, step

__all__ = ["client"]

BOTH = ("--instance", "ml.g5.2xlarge,ml.g6.2xlargex2")
TYPES = [("ml.g5.2xlarge", 1), ("ml.g6.2xlarge", 2)]


def claims(world: PlannedWorld) -> list[int]:
    return sorted(int(uri.split("/")[-2]) for uri in world.objects if uri.endswith("/request.json"))


def test_where_the_quota_has_no_room_the_next_hosts_are_taken_and_the_task_is_done(client):
    client.world = PlannedWorld(DONE)
    client.world.refuses = ("ml.g5.2xlarge",)
    assert client(*BOTH) == 0
    assert client.world.hosts == TYPES[1:]
    (line,) = [line for line in client.said.splitlines() if "no room for" in line]
    assert line.startswith(
        "algorun: no room for 1 x ml.g5.2xlarge (ResourceLimitExceeded: The account-level service limit"
    )
    assert line.endswith("; next: 2 x ml.g6.2xlarge (6 an hour)")
    client.world.refuses = ()
    assert client(*BOTH) == 0
    assert "done already by" in client.said
    assert client("--instance", "ml.g6.2xlarge,ml.g5.2xlarge", "--hosts", "2") == 0  # its hosts are among these, too
    assert client.world.creates == 1
    fingerprint = json.loads(client.world.objects["s3://local/images/train/jobs/0002/fingerprint.json"][0])
    assert fingerprint["groups"]["options"]["instance"] == '"ml.g6.2xlarge"'


def test_a_job_that_finds_no_free_instances_is_followed_by_one_on_the_next_hosts(client):
    client.world = PlannedWorld(CAPACITY, DONE)
    assert client(*BOTH, "--json") == 0
    assert client.world.hosts == TYPES
    (told,) = client.events_of("next_hosts")
    assert (told["tried"], told["next"], told["rate"]) == ("1 x ml.g5.2xlarge", "2 x ml.g6.2xlarge", 6.0)
    assert told["text"].startswith("CapacityError: ")


def test_it_is_told_in_one_line(client):
    client.world = PlannedWorld(CAPACITY, DONE)
    assert client(*BOTH) == 0
    assert sum("next: 2 x ml.g6.2xlarge (6 an hour)" in line for line in client.said.splitlines()) == 1
    assert sum("no free instances" in line for line in client.said.splitlines()) <= 1


def test_the_last_one_that_is_refused_ends_it_with_the_code_and_one_error(client):
    client.world = PlannedWorld(CAPACITY, CAPACITY, DONE)
    assert client(*BOTH) == 73
    assert client.world.hosts == TYPES
    client.world = PlannedWorld()
    client.world.refuses = ("ml.g5.2xlarge", "ml.g6.2xlarge")
    assert client(*BOTH) == 72
    errors = [line for line in client.said.splitlines() if line.startswith("algorun: error:")]
    assert len(errors) == 1
    assert "no room for any of the 2 kinds of hosts: 1 x ml.g5.2xlarge: ResourceLimitExceeded: " in errors[0]
    assert "; 2 x ml.g6.2xlarge: ResourceLimitExceeded: " in errors[0]
    assert (client.world.creates, claims(client.world)) == (0, [1, 2])
    client.world.refuses = ()
    client.world.plan = [DONE]
    assert client(*BOTH) == 0
    assert client.world.hosts == TYPES[:1]  # the first one again


def test_no_capacity_and_then_no_quota(client):
    client.world = PlannedWorld(CAPACITY)
    client.world.refuses = ("ml.g6.2xlarge",)
    assert client(*BOTH) == 72
    assert client.world.hosts == TYPES[:1]
    assert "come back with: algorun submit" in client.said


def test_a_client_comes_back_to_the_job_on_its_second_choice(client):
    client.world = PlannedWorld(End("InProgress"))
    client.world.refuses = ("ml.g5.2xlarge",)
    assert client(*BOTH, "--detach") == 0
    client.world.refuses = ()
    assert client(*BOTH, "--detach", "--json") == 0
    assert [each["joined"] for each in client.events_of("sent")] == [True]
    assert client.world.creates == 1


@pytest.mark.slow(but=["1"])
@pytest.mark.parametrize("first", range(1, 9))
def test_a_client_that_is_killed_at_any_moment_goes_on(client, first):
    plan = (CAPACITY, End("Stopped", "MaxRuntimeExceeded", "", ("a",)), CAPACITY, DONE)

    def world() -> PlannedWorld:
        made = PlannedWorld(*plan)
        made.refuses = ("ml.c5.2xlarge",)
        return made

    line = ("--until-done", "--instance", "ml.g5.2xlarge,ml.c5.2xlarge,ml.g6.2xlargex2")
    client.world = world()
    assert client(*line) == 0
    assert client.world.hosts == [*TYPES, *TYPES]
    moments, blocked = client.world._moment, list[int]()
    for moment in range(first, moments + 1, 8):
        client.world = world()
        client.world.kill_at = moment
        with pytest.raises(Killed):
            client(*line)
        code = client(*line)
        if code == 64:  # it died between its decision and a call that would have been refused: nobody can know that
            assert "if its client is gone, repeat its line, or wait 30 minutes" in client.said
            client.world.ages |= {uri: timedelta(hours=1) for uri in client.world.objects if "/decision" in uri}
            blocked.append(moment)
            code = client(*line)
        assert code == 0, moment
        assert client.world.hosts == [*TYPES, *TYPES], moment
    assert len(blocked) <= 2


def test_no_free_instances_count_as_barren_only_on_the_last_hosts(client):
    client.world = PlannedWorld(*[CAPACITY] * 4, DONE)
    assert client("--until-done", *BOTH) == 73
    assert client.world.hosts == [*TYPES, *TYPES]
    assert "2 jobs in a row have left the state as they found it (no state)" in client.said
    client.world = PlannedWorld(CAPACITY, End(LIMIT.status, LIMIT.detail, "", (step(1),)), CAPACITY, DONE)
    assert client("--until-done", *BOTH) == 0
    assert client.world.hosts == [*TYPES, *TYPES]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--instance", "ml.g5.2xlarge,ml.g5.2xlarge"), "--instance: 'ml.g5.2xlarge' comes twice"),
        (("--instance", "ml.g5.2xlarge,"), "--instance: '' is empty"),
        (("--instance", "ml.g5.2xlargex0"), "--instance: "),
        (("--instance", "ml.g5.2xlargex2,ml.g6.2xlarge", "-j", "1x1"), "--instance: ml.g5.2xlargex2 contradicts -j 1"),
        (("--instance", "ml.g5.2xlargex2", "--hosts", "3"), "--instance: ml.g5.2xlargex2 contradicts --hosts 3"),
        (("--instance", "ml.g5.2xlarge,ml.m5.large", "--volume", "10"), "--volume: ml.g5.2xlarge has disks of a fixed size"),
        (("--instance", "ml.m5.large,ml.g5.2xlarge", "--volume", "10"), "--volume: ml.g5.2xlarge has disks of a fixed size"),
    ],
)  # fmt: skip
def test_bad_input_is_one_error_and_nothing_is_created(client, words, error):
    assert client(*words) == 64
    assert error in client.said
    assert client.world.puts == []


def test_a_job_file_has_them_as_a_list(client):
    (client.folder / "algorun.toml").write_text(
        '[task.train]\nrun = ["train.py"]\ninstance = ["ml.g5.2xlarge", "ml.g6.2xlargex2"]\n'
    )
    client.world = PlannedWorld(DONE)
    client.world.refuses = ("ml.g5.2xlarge",)
    from algorun_client.commands.main import main
    from tests.conftest import clean_environ

    assert main(["submit", "--where", "local"], clean_environ()) == 0
    assert client.world.hosts == TYPES[1:]


def test_a_chain_takes_the_next_hosts_and_waits_where_none_has_room(client, monkeypatch):
    (client.folder / "algorun.toml").write_text(
        '[task.train]\nrun = ["train.py"]\ninstance = "ml.g5.2xlarge,ml.g6.2xlargex2"\n'
    )
    client.world = PlannedWorld(CAPACITY, DONE)
    assert client("--all", *BOTH, program=()) == 0
    assert client.world.hosts == TYPES
    assert "algorun: train: waiting: no room for 1 x ml.g5.2xlarge (CapacityError: " in client.said
    client.world = PlannedWorld(DONE)
    client.world.refuses = ("ml.g5.2xlarge", "ml.g6.2xlarge")
    assert client("--all", *BOTH, program=()) == 72  # a quota of 0 never has room
    assert "no room for any of the 2 kinds of hosts" in client.said
