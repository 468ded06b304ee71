"""The folder of environments: bounded, and nothing that is in use or half made is taken."""

from __future__ import annotations

import json
import os

import pytest

from algorun.common import own_python
from algorun.job.own_environment import hold
from algorun.usercode import job_environment, layered_venv


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Five environments of 10 bytes each, the first one unused for longest."""
    monkeypatch.setattr(job_environment, "MOST_BYTES", 30)
    for number in range(5):
        folder = tmp_path / f"key-{number}"
        (folder / "env").mkdir(parents=True)
        (folder / "made.json").write_text(json.dumps({"environment": "env", "bytes": 10, "bound_to": ""}))
        os.utime(folder / "made.json", (number, number))
    return tmp_path


def prune(root) -> list[str]:
    job_environment.prune(str(root), keep=str(root / "key-4"))
    return sorted(os.listdir(root))


def test_the_longest_unused_environments_go_first(root):
    assert prune(root) == ["key-2", "key-3", "key-4"]


def test_an_environment_in_use_stays(root):
    handle = hold(str(root / "key-0" / "env"))
    assert prune(root) == ["key-0", "key-3", "key-4"]
    os.close(handle)


def test_what_killed_processes_left_and_what_is_bound_to_a_folder_that_is_gone_goes(root):
    (root / "half" / "env").mkdir(parents=True)
    (root / "key-3" / "made.json").write_text(
        json.dumps({"environment": "env", "bytes": 0, "bound_to": f"{root}/gone"})
    )
    (root / "key-2" / "made.json").write_text("not JSON")
    assert prune(root) == ["key-0", "key-1", "key-2", "key-4"]  # 30 bytes are known


def test_programs_of_the_environment_below_run_the_new_interpreter(tmp_path, monkeypatch):
    below, new = tmp_path / "below" / "bin", tmp_path / "new" / "bin"
    for folder in (below, new):
        folder.mkdir(parents=True)
    (below / "python").symlink_to("/bin/sh")
    monkeypatch.setattr(layered_venv.sys, "executable", str(below / "python"))
    monkeypatch.setattr(layered_venv.sysconfig, "get_path", lambda name: str(below))
    monkeypatch.setattr(layered_venv, "packages_below", lambda environ: [])
    texts = {
        "plain": f"#!{below}/python\nprint(1)\n",
        "options": f"#!{below}/python -sP\nprint(1)\n",
        "other": "#!/usr/bin/perl\n",
        "there": f"#!{below}/python\n",
        "itself": f"#!{below}/python\nprint(__file__)\n",
        "binary": "\x7fELF",
    }
    for name, text in texts.items():
        (below / name).write_text(text)
    (new / "there").write_text("the job's own")
    layered_venv.bring_programs(str(new.parent), {})
    start = f"#!/bin/sh\n'''exec' \"{new}/python\"%s \"$0\" \"$@\"\n' '''\n"
    assert {path.name: path.read_text() for path in new.iterdir()} == {
        "plain": f"{start % ''}print(1)\n",
        "options": f"{start % ' -sP'}print(1)\n",
        "there": "the job's own",
    }


def test_a_path_changes_only_where_it_finds_another_python(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "python").write_text("")
        (tmp_path / name / "python").chmod(0o755)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    (tmp_path / "link").symlink_to(one)
    assert own_python.path(f"{one}/python", f"/nothing:{one}:{two}") == f"/nothing:{one}:{two}"
    assert own_python.path(f"{one}/python", f"{two}:{one}") == f"{one}:{two}:{one}"
    assert own_python.path(f"{one}/python", f"{tmp_path}/link:{two}") == f"{tmp_path}/link:{two}"
    assert own_python.path(f"{one}/python", "") == one
