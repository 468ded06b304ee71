"""How any command of the client ends."""

from __future__ import annotations

import errno
import json
import os
import signal

import pytest

from algorun_client.commands import ls
from algorun_client.commands.main import _terminated, main
from algorun_client.commands.where import local_root


@pytest.mark.parametrize("as_json", [False, True])
def test_a_full_disk_is_one_error_with_its_fix(monkeypatch, capsys, as_json):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x")

    monkeypatch.setattr(ls, "run", full)
    assert main(["ls", *(["--json"] if as_json else [])], {}) == 64
    said = capsys.readouterr()
    assert said.err.startswith("algorun: error: /tmp/x: No space left on device; fix: free some space")
    if as_json:
        assert json.loads(said.out)["kind"] == "error"


def test_a_closed_pipe_is_left_to_the_launchers_main(monkeypatch):
    def closed(*_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(ls, "run", closed)
    with pytest.raises(BrokenPipeError):
        main(["ls"], {})


def test_the_folder_of_local_jobs_is_the_same_for_their_runner(tmp_path, monkeypatch):
    """It starts in another folder."""
    monkeypatch.chdir(tmp_path)
    assert local_root({"ALGORUN_LOCAL_ROOT": "jobs/here"}) == tmp_path / "jobs" / "here"


@pytest.mark.parametrize("command", ["status", "logs", "stop", "fetch"])
def test_the_word_for_the_job_that_a_command_is_about(command, capsys):
    """`target` is where jobs run."""
    with pytest.raises(SystemExit):
        main([command, "-h"], {})
    said = capsys.readouterr().out
    assert "JOB  " in said
    assert "TARGET" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_as_ctrl_c_does(number):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), _terminated():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)  # as nohup does
        with _terminated():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
