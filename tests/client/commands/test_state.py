"""`algorun state`: what a task keeps, listed and removed."""

from __future__ import annotations

import json
import re

import pytest

from algorun_client.commands import find_job
from algorun_client.commands.main import main
from algorun_client.connection import LOCAL, Site
from algorun_client.submit import submit
from tests.client.submit.place.memory import World
from tests.conftest import clean_environ

FILES = ("train/state/algo-1/a", "train/state/algo-2/b", "train/state/c", "train/state-2/d", "train2/state/algo-1/e")


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World()
    made.objects = {f"s3://local/images/{name}": (b"12", "") for name in FILES}

    def connect(*_, **__):
        target = made.target
        return Site(target=target, following=lambda: target, session=None, pace=LOCAL, options=" --where local")

    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "train.py").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(find_job, "connect", connect)
    monkeypatch.setattr(submit, "connect", connect)
    return made


def run(capsys, *words, code=0):
    assert main(["state", *words], clean_environ()) == code
    return capsys.readouterr()


def test_the_folders_of_hosts_are_listed(world, capsys):
    lines = run(capsys, "ls", "train").out.splitlines()
    assert lines[0] == "s3://local/images/train/state/"
    assert [line.split()[:-2] for line in lines[2:]] == [
        ["(no", "folder)", "1", "2", "B"],
        ["algo-1", "1", "2", "B"],
        ["algo-2", "1", "2", "B"],
    ]
    objects = [json.loads(line) for line in run(capsys, "ls", "--json", "train").out.splitlines()]
    assert [each.get("name") for each in objects] == ["", "algo-1", "algo-2", None]
    assert len(run(capsys, "--json", "ls", "train").out.splitlines()) == 4  # options may stand before the action
    assert run(capsys, "ls", "nothing").out == "s3://local/images/nothing/state/: no state\n"


def test_one_host_or_all_are_removed_and_no_neighbour(world, capsys):
    assert run(capsys, "clean", "--host", "algo-2", "train").out == (
        "s3://local/images/train/state/algo-2/: 1 file removed, 2 B\n"
    )
    assert sorted(world.objects) == sorted(f"s3://local/images/{name}" for name in FILES if "algo-2" not in name)
    assert "2 files removed, 4 B" in run(capsys, "clean", "images/train").out
    assert sorted(world.objects) == [f"s3://local/images/{name}" for name in FILES[3:]]
    assert "no state" in run(capsys, "clean", "train").out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("clean", "--host", "algo-3", "train"), "--host: 'algo-3' has no folder in .*; allowed: algo-1, algo-2"),
        (("ls", "--host", "algo-1", "train"), "--host: is for clean"),
        (("clean", "../train"), "TASK: '..' is not a name"),
        (("clear", "train"), "invalid choice: 'clear'"),
    ],
)
def test_bad_input_is_one_error_and_nothing_is_removed(world, capsys, words, text):
    found = run(capsys, "--json", *words, code=64)
    end = json.loads(found.out)
    assert (end["code"], end["kind"]) == (64, "error")
    assert re.search(text, end["text"])
    assert len(world.objects) == len(FILES)


def test_nothing_is_removed_while_a_job_writes_it(world, capsys):
    assert main(["submit", "--where", "local", "--detach", "train.py"], clean_environ()) == 0
    capsys.readouterr()
    text = run(capsys, "clean", "train", code=64).err
    assert "runs, and writes this state; fix: algorun stop images-train-0001-" in text
    assert "s3://local/images/train/state/c" in world.objects
