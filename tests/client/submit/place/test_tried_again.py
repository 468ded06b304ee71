"""A job of a chain that is tried again: after a lost answer it runs once, and while it waits for room it says all once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from algorun_client.commands.main import main
from algorun_client.common.errors import ApiError
from algorun_client.connection import PollTimes
from algorun_client.files import archive
from algorun_client.submit import submit
from algorun_client.submit.assemble import prepare
from algorun_client.submit.chain import chain_run
from tests.client.submit.place.test_place import Laptop, laptop
from tests.conftest import clean_environ

__all__ = ["laptop"]

FILE = """
[task.train]
run = ["train.py"]
in.data = "data"
"""


class Refusing:
    """Create calls that fail `times` times: before the job is made, or after it."""

    def __init__(self, laptop: Laptop, error: ApiError, times: int, *, makes_job: bool, status: str = "Completed"):
        self.create, self.left = laptop.world.create_training_job, times
        self.error, self.makes_job, self.status, self.world = error, makes_job, status, laptop.world

    def __call__(self, **request: object) -> object:
        if not self.left:
            return self.create(**request)
        self.left -= 1
        if self.makes_job:
            self.create(**request)
            self.world.status = self.status
        raise self.error


@pytest.fixture
def chain(laptop, monkeypatch):
    """Runs `submit --all`; the current folder has the program."""
    Path("algorun.toml").write_text(FILE)
    pace = PollTimes(state_s=0.002, silence_s=5.0, stream_s=0.0, grace_s=0.0)
    monkeypatch.setattr(submit, "connect", lambda *_, **__: dataclasses.replace(laptop.connect(), pace=pace))
    monkeypatch.setattr(chain_run, "POLLS_BETWEEN_TRIES", 1)

    def submit_all(*words: str) -> int:
        return main(["submit", "--where", "local", "--all", *words], clean_environ())

    return submit_all


@pytest.mark.parametrize("words", [("--force",), ("--clean-state",), ()])
@pytest.mark.parametrize("status", ["Completed", "Failed"])
def test_a_job_whose_answer_was_lost_runs_once_also_if_it_has_ended(chain, laptop, monkeypatch, words, status):
    assert chain("--json") == 0
    lost = ApiError("ReadTimeoutError", "no answer", "CreateTrainingJob")
    monkeypatch.setattr(laptop.world, "create_training_job", Refusing(laptop, lost, 1, makes_job=True, status=status))
    if not words:  # else it is done
        Path("train.py").write_text("print(2)\n")
    assert (chain("--json", *words) == 0) is (status == "Completed")
    assert laptop.world.creates == 2


def test_a_forced_job_that_was_not_made_is_made(chain, laptop, monkeypatch):
    assert chain("--json") == 0
    lost = ApiError("EndpointConnectionError", "no route", "CreateTrainingJob")
    monkeypatch.setattr(laptop.world, "create_training_job", Refusing(laptop, lost, 1, makes_job=False))
    assert chain("--json", "--force") == 0
    assert laptop.world.creates == 2


def test_a_job_that_waits_for_room_says_once_what_it_has_to_say(chain, laptop, monkeypatch, capsys):
    assert chain() == 0
    capsys.readouterr()
    Path("train.py").write_text("print(2)\n")
    monkeypatch.setattr(prepare, "LARGE_CODE", 0)  # a warning
    above = ApiError(
        "ResourceLimitExceeded",
        "the limit is 2 Instances, with current utilization of 2 Instances",
        "CreateTrainingJob",
    )
    monkeypatch.setattr(laptop.world, "create_training_job", Refusing(laptop, above, 3, makes_job=False))
    assert chain() == 0
    said = capsys.readouterr().err.splitlines()
    assert sum("runs again" in line for line in said) == 1
    assert sum("algorun: warning:" in line for line in said) == 1
    assert sum("upload" in line for line in said) == 1
    assert sum("train: queued" in line for line in said) == 1


def test_the_code_of_a_sweep_is_packed_once(chain, laptop, monkeypatch):
    Path("algorun.toml").write_text(
        '[task.train]\nrun = ["train.py", "--lr", "1"]\n[task.train.sweep]\ngrid = { lr = [1, 2, 3, 4] }\n'
    )
    calls, pack = [], archive.pack
    monkeypatch.setattr(archive, "IN_MEMORY", 0)  # as a large one: it is read from its file, for each job
    monkeypatch.setattr(archive, "pack", lambda *words: calls.append(words) or pack(*words))
    assert chain() == 0
    assert (laptop.world.creates, len(calls)) == (4, 1)
