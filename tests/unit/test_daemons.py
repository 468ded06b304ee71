"""orted's command line."""

from __future__ import annotations

import pytest

from launcher.daemons import Daemons, with_session


def test_session_files_lie_in_the_hosts_own_folder():
    argv = ["orted", "-mca", "orte_tmpdir_base", "/leader", "-mca", "ess", "env"]
    assert with_session(argv, "/mine") == ["orted", "-mca", "orte_tmpdir_base", "/mine", "-mca", "ess", "env"]
    assert with_session(["orted"], "/mine") == ["orted", "-mca", "orte_tmpdir_base", "/mine"]


@pytest.mark.parametrize("command", ["rm -rf /", "", "'unfinished", "orted2 -x", "sh -c orted"])
def test_only_orted_is_started(command):
    sent = []
    daemons = Daemons(lambda argv: pytest.fail("started"), sent.append)
    assert "orted" in daemons.start({"id": "1", "command": command}, expected=True)
    assert sent == [{"type": "daemon_exit", "id": "1", "code": 1}]


def test_orted_is_the_one_on_path_and_only_in_an_mpirun_job():
    started, sent = [], []
    daemons = Daemons(lambda argv: started.append(argv) or 7, sent.append)
    assert daemons.start({"id": "1", "command": "/opt/ml/input/orted -x 'a b'"}, expected=True) == ""
    assert started == [["orted", "-x", "a b"]]
    assert daemons.start({"id": "2", "command": "orted"}, expected=False) != ""
    assert daemons.exited(7, -9)
    assert sent[-1] == {"type": "daemon_exit", "id": "1", "code": 137}
