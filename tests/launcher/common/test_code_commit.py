"""The commit of a program's code: of real clones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from algorun.common import code_commit
from algorun.common.code_commit import CHANGED, commit_of
from tests.clones import git, head, made


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return made(tmp_path / "clone")


def test_a_clean_folder_has_its_commit(clone):
    assert commit_of(clone, []) == commit_of(clone / "src", [clone / "src" / "train.py"]) == head(clone)


def test_a_change_counts_in_the_folder_of_the_code_alone(clone):
    (clone / "src" / "train.py").write_text("print(2)\n")
    assert commit_of(clone / "src", []) == f"{head(clone)} {CHANGED}"
    assert commit_of(clone / "docs", []) == head(clone)


def test_a_file_that_git_does_not_track_counts_only_if_the_program_has_it(clone):
    new = clone / "src" / "model" / "net.py"
    new.parent.mkdir()
    new.write_text("")
    assert commit_of(clone, [clone / "src" / "train.py"]) == head(clone)
    assert commit_of(clone, [new]) == f"{head(clone)} {CHANGED}"


def test_a_file_that_git_ignores_counts_only_if_the_program_has_it(clone):
    (clone / "data").mkdir()
    (clone / "data" / "labels.py").write_text("")
    assert commit_of(clone, []) == head(clone)
    assert commit_of(clone, [clone / "data" / "labels.py"]) == f"{head(clone)} {CHANGED}"


@pytest.mark.parametrize("name", ["data", "other"])
def test_a_folder_of_another_project_in_a_clone_has_no_commit(clone, name):
    (clone / name / "job").mkdir(parents=True)
    (clone / name / "job" / "train.py").write_text("")
    assert commit_of(clone / name / "job", [clone / name / "job" / "train.py"]) == ""


def test_worktrees_and_submodules_have_their_own_commit(clone, tmp_path):
    git(clone, "worktree", "add", "-q", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-qm", "second", "--allow-empty")
    above = tmp_path / "above"
    above.mkdir()
    git(above, "init", "-q")
    git(above, "submodule", "--quiet", "add", str(clone), "part")
    git(above, "commit", "-qm", "with a part")
    assert commit_of(tmp_path / "tree", []) == head(tmp_path / "tree") != head(clone)
    assert commit_of(above / "part", []) == head(clone)
    assert commit_of(above, []) == head(above)


def test_a_change_in_a_submodule_is_one_of_the_folder_above(clone, tmp_path):
    above = tmp_path / "above"
    above.mkdir()
    git(above, "init", "-q")
    git(above, "submodule", "--quiet", "add", str(clone), "part")
    git(above, "commit", "-qm", "with a part")
    (above / "part" / "src" / "train.py").write_text("print(2)\n")
    assert commit_of(above, []) == f"{head(above)} {CHANGED}"


def test_no_clone_and_a_clone_without_a_commit_have_none(tmp_path):
    assert commit_of(tmp_path, []) == ""
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path, []) == ""


def test_a_damaged_clone_has_none(clone):
    (clone / ".git" / "HEAD").write_text("nothing")
    assert commit_of(clone, []) == ""


def test_without_git_there_is_none(clone, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(clone, []) == ""


def test_a_git_that_does_not_answer_is_not_waited_for(clone, monkeypatch, tmp_path):
    monkeypatch.setattr(code_commit, "DEADLINE_S", 0.3)
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "git"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    assert commit_of(clone, []) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_clone_of_somebody_else_has_none(clone, monkeypatch):
    for path in (clone, clone / ".git"):
        os.chown(path, 12345, 12345)
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert commit_of(clone, []) == ""


def test_a_hook_s_variables_do_not_name_another_clone(clone, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert commit_of(clone, []) != ""


def test_names_of_files_are_not_taken_for_entries(clone):
    (clone / "src" / "? odd\nname").write_text("")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "odd")
    git(clone, "mv", "src/? odd\nname", "src/even")
    assert commit_of(clone / "src", []) == f"{head(clone)} {CHANGED}"


def test_looking_writes_nothing_into_the_clone(clone):
    os.utime(clone / "src" / "train.py", (1, 1))  # git would like to note this time in its index
    before = (clone / ".git" / "index").read_bytes()
    assert commit_of(clone, []) == head(clone)
    assert (clone / ".git" / "index").read_bytes() == before
