"""`--json`: every line of every command is an object that docs/submit.md describes, and the last one says how it ended."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from algorun_client.commands.main import main
from tests.conftest import ROOT, clean_environ

WAITS = "trap 'echo saved; exit 0' TERM; echo waits; sleep 60 & wait"


def documented() -> dict[str, tuple[set[str], set[str]]]:
    """The fields of each event, from the table of the page: those it always has, and those that it "also" has at times."""
    page = (ROOT / "docs" / "submit.md").read_text()
    table = page.partition("| event | printed by | fields |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines()[2:]]
    return {
        re.findall(r"`(\w+)`", event)[0]: (_names(fields.partition(" also ")[0]), _names(fields))
        for event, _, fields in rows
    }


def _names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


@pytest.fixture
def algorun(tmp_path, monkeypatch, capsys):
    """Runs a command with --json on this machine; returns its objects, the last one an `end` with its exit code."""
    monkeypatch.chdir(tmp_path)
    environ = clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root"))
    known = documented()

    def run(command: str, *words: str, where: tuple[str, ...] = ("--where", "local")) -> list[dict[str, object]]:
        code = main([command, *where, "--json", *words], environ)
        objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        for each in objects:
            always, all_fields = known[each["event"]]
            assert always <= each.keys() - {"event"} <= all_fields, each
        assert [each["event"] for each in objects].index("end") == len(objects) - 1
        assert objects[-1]["code"] == code
        assert objects[-1]["source"] in ("job", "client")
        return objects

    return run


def test_every_command_ends_with_one_object_that_says_how(algorun, tmp_path):
    sent, end = algorun("submit", "--detach", "--hosts", "1", "--shell", WAITS)
    job = sent["job"]
    come_back = f"algorun logs -f {job} --where local"
    assert (end["kind"], end["code"], end["job"], end["again"]) == ("detached", 0, job, come_back)
    (state, end) = algorun("status", "shell")
    assert (state["status"], state["outcome"], end["kind"]) == ("InProgress", None, "done")
    deadline = time.monotonic() + 30
    while not any("waits" in each["text"] for each in algorun("logs", "shell")):
        assert time.monotonic() < deadline
    (stop, end) = algorun("stop", "shell")
    assert (stop["asked"], end["kind"], end["again"]) == (True, "done", come_back)
    *_, end = algorun("logs", "-f", "shell")
    assert (end["kind"], end["source"], end["code"], end["job"], end["again"]) == ("stopped", "client", 74, job, "")
    (state, _) = algorun("status", "shell")
    assert (state["outcome"]["kind"], state["outcome"]["code"]) == ("stopped", 74)
    (listed, end) = algorun("ls")
    assert (listed["job"], listed["status"], end["kind"], end["job"]) == (job, "Stopped", "done", "")
    (fetched, _) = algorun("fetch", "--what", "logs", "--to", "home", "shell")
    assert fetched["files"] == {"home/logs": 1}


@pytest.mark.parametrize(
    "words",
    [("ls", "--max", "x"), ("ls", "--nonsense"), ("status", "absent"), ("stop", "absent"), ("logs", "-f", "absent"),
     ("fetch", "--what", "all", "absent"), ("submit", "absent.py"), ("submit", "--hosts", "0", "ddp")],
)  # fmt: skip
def test_an_error_is_an_end_too(algorun, words):
    (end,) = algorun(*words)
    assert (end["code"], end["kind"], end["source"]) == (64, "error", "client")
    assert end["text"]


def test_words_of_the_program_are_no_options(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        main(["submit", "--nonsense", "x", "train.py", "--json"], {})
    assert capsys.readouterr().out == ""


def test_a_request_and_a_policy_are_printed_as_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    environ = clean_environ(ALGORUN_LOCAL_ROOT=str(Path("root")))
    assert main(["submit", "--where", "local", "--json", "--dry-run", "ddp"], environ) == 0
    assert json.loads(capsys.readouterr().out)["create"]
    assert main(["role", "--json", "--account", "123456789012", "--region", "eu-west-1"], environ) == 0
    assert json.loads(capsys.readouterr().out)["Statement"]
