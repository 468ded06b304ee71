"""Tasks that remember, by the commands and with real ranks: on this machine, and through boto3 against the test server."""

from __future__ import annotations

import json
import os
import re
import shutil

import boto3
import pytest

from algorun_client import connection
from algorun_client.commands.main import main
from tests.client.test_round_trip import AWS, QUICK
from tests.conftest import clean_environ
from tests.sagemaker_server.server_process import REGION, running

# Each host counts its executions in a folder of its own, and says what it finds of all hosts.
COUNTS = """
import os, pathlib
state = pathlib.Path(os.environ["SSM_INSTANCE_STATE"])
state.mkdir(exist_ok=True)
count = state / "count"
count.write_text((count.read_text() if count.exists() else "") + "x")
found = sorted(f"{each.parent.name}={each.read_text()}" for each in state.parent.glob("*/count"))
print("found", *found, flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server"), "--sync-s", "0.1") as process:
        environ = process.environ()
        boto3.client(
            "s3", endpoint_url=process.moto_url, region_name=REGION,
            aws_access_key_id=environ["AWS_ACCESS_KEY_ID"], aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
        ).create_bucket(Bucket="b-ucket")  # fmt: skip
        yield process


@pytest.fixture(params=["local", "server"])
def algorun(request, tmp_path, monkeypatch, capfd):
    """Runs a command with --json in a folder `counts`, and returns its objects."""
    monkeypatch.setattr(connection, "LOCAL", QUICK)
    monkeypatch.setattr(connection, "PollTimes", lambda **_: QUICK)
    place, environ = ["--where", "local"], clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root"))
    if request.param == "server":
        server = request.getfixturevalue("server")
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        place, environ = [], clean_environ(ALGORUN_BUCKET="b-ucket")
    folder = tmp_path / "counts"
    folder.mkdir()
    (folder / "train.py").write_text(COUNTS)
    monkeypatch.chdir(folder)

    def run(command: str, *words: str) -> list[dict[str, object]]:
        own = AWS if command == "submit" and not place else ()
        code = main([command, *place, "--json", *own, *words], environ)
        said = capfd.readouterr()
        assert code == 0, said
        return [json.loads(line) for line in said.out.splitlines()]

    return run


def found(events):
    """What each host says it finds."""
    lines = [each["text"] for each in events if each["event"] == "line"]
    return sorted({line.partition("found ")[2] for line in lines if "found " in line})


# Through boto3 `make test` keeps one whole way; requests, failures and stops: client/test_server.py.
@pytest.mark.slow(but=["local"])
def test_a_task_is_sent_once_and_its_state_lives_on(algorun, tmp_path):
    line = ("--task", "a", "--hosts", "2", "--slots", "1", "train.py")
    first = algorun("submit", *line)
    assert first[0]["event"] == "sent"
    done, end = algorun("submit", *line)
    assert done == {"event": "done", "job": first[0]["job"], "number": 1}
    assert (end["code"], end["kind"]) == (0, "done")
    # From another folder of the same name, as on another machine.
    shutil.copytree(tmp_path / "counts", tmp_path / "elsewhere" / "counts")
    os.chdir(tmp_path / "elsewhere" / "counts")
    assert algorun("submit", *line)[0] == done
    # A neighbour whose name begins alike has a state of its own.
    assert found(algorun("submit", "--task", "ab", "--hosts", "1", "--slots", "1", "train.py")) == ["algo-1=x"]
    # With one host the folder of the other one survives.
    changed, *rest = algorun("submit", "--task", "a", "--hosts", "1", "--slots", "1", "train.py")
    assert changed["differences"] == ["hosts: was 2, is 1"]
    assert found(rest) == ["algo-1=xx algo-2=x"]
    folders = algorun("state", "ls", "a")[:-1]
    assert [(each["name"], each["files"], each["bytes"]) for each in folders] == [("algo-1", 1, 2), ("algo-2", 1, 1)]
    cleaned, _ = algorun("state", "clean", "--host", "algo-2", "a")
    assert (cleaned["files"], cleaned["uri"].endswith("/counts/a/state/algo-2/")) == (1, True)
    assert [each["name"] for each in algorun("state", "ls", "a")[:-1]] == ["algo-1"]
    again = algorun("submit", "--task", "a", "--hosts", "1", "--slots", "1", "--clean-state", "train.py")
    assert found(again) == ["algo-1=x"]
    assert [each["name"] for each in algorun("state", "ls", "ab")[:-1]] == ["algo-1"]
    assert re.fullmatch(r"counts-a-0003-[0-9a-f]{6}", again[0]["job"])
