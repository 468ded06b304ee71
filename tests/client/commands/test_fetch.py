"""`fetch` into a folder that holds something already: the user's own files, or what another job has left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from algorun_client.commands import job_pieces
from algorun_client.commands.main import main
from algorun_client.files import scan
from tests.conftest import clean_environ

PIECES = ("model", "output", "state", "logs", "metrics.json", "job.json")


@pytest.fixture(scope="module")
def jobs_root(tmp_path_factory):
    """Where two jobs of this machine are: `left` has a model and a checkpoint, `empty` has neither."""
    root, code = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("code")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(code)
        left = 'echo trained > "$SM_MODEL_DIR/weights"; echo 7 > "$SM_MODEL_DIR/../checkpoints/step"'
        for task, line in (("left", left), ("empty", "exit 3")):
            words = ["submit", "--where", "local", "--project", "p", "--task", task, "--shell", line]
            assert main(words, clean_environ(ALGORUN_LOCAL_ROOT=str(root))) in (0, 3)
    return root


@pytest.fixture
def fetch(jobs_root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        environ = clean_environ(ALGORUN_LOCAL_ROOT=str(jobs_root))
        code = main(["fetch", "--where", "local", "--project", "p", *words], environ)
        found = capsys.readouterr()
        return code, found.out + found.err

    return run


def tree(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("piece", PIECES)
def test_a_file_or_folder_of_the_user_is_never_replaced(fetch, tmp_path, piece):
    own = tmp_path / piece
    if own.suffix:
        own.write_text("mine")
    else:
        own.mkdir()
        (own / "net.py").write_text("mine")
    before = tree(tmp_path)
    code, text = fetch("--to", ".", "left")
    assert (code, tree(tmp_path)) == (64, before)
    assert text == (
        f"algorun: error: {piece}: was not fetched by algorun, and would be replaced; fix: name another folder by --to,"
        " or move it away\n"
    )


def test_a_link_of_the_user_stays_too(fetch, tmp_path):
    (tmp_path / "model").symlink_to("/nowhere")
    assert fetch("--to", ".", "left")[0] == 64
    assert (tmp_path / "model").is_symlink()


def test_what_is_not_asked_for_is_not_in_the_way(fetch, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "net.py").write_text("mine")
    (tmp_path / "state").mkdir()  # empty: nothing can be lost
    code, text = fetch("--to", ".", "--what", "state,logs", "left")
    assert code == 0, text
    assert (tmp_path / "state" / "step").read_text() == "7\n"
    assert (tmp_path / "model" / "net.py").read_text() == "mine"


def test_the_same_line_replaces_what_it_has_fetched(fetch, tmp_path):
    for _ in range(2):
        code, text = fetch("--to", "home", "left")
        assert code == 0, text
        assert (tmp_path / "home" / "model" / "weights").read_text() == "trained\n"
        (tmp_path / "home" / "model" / "weights").write_text("edited")


def test_a_model_of_another_job_does_not_pass_for_one_of_this_job(fetch, tmp_path):
    """A script that fetches into one folder, and uses home/model, would take the model of the job before."""
    home = tmp_path / "home"
    assert fetch("--to", "home", "left")[0] == 0
    other = json.loads((home / "job.json").read_text())["job"]
    shutil.rmtree(home / "state")
    code, text = fetch("--to", "home", "empty")
    assert "home/state: the job has left nothing there\n" in text
    assert f"home/model: the job has left nothing there; that of {other} is removed\n" in text
    assert (code, (home / "model").exists()) == (0, False)
    assert "p-empty-" in json.loads((home / "job.json").read_text())["job"]


def test_logs_of_one_job_do_not_come_beside_the_model_of_another(fetch, tmp_path):
    assert fetch("--to", "home", "--what", "model", "left")[0] == 0
    before = tree(tmp_path / "home")
    code, text = fetch("--to", "home", "--what", "logs", "empty")
    assert (code, tree(tmp_path / "home")) == (64, before)
    assert text == (
        "algorun: error: home/model: is not of this job, as home/job.json tells, and would be taken for its own;"
        " fix: name another folder by --to, or remove it first\n"
    )
    assert fetch("--to", "home", "--what", "logs", "left")[0] == 0  # of the same job


def test_a_state_of_another_task_does_not_mix_with_this_one(fetch, tmp_path):
    home = tmp_path / "home"
    assert fetch("--to", "home", "left")[0] == 0
    other = json.loads((home / "job.json").read_text())["job"]
    (home / "tensorboard").mkdir()
    (home / "tensorboard" / "events").write_text("of an earlier version of the task")
    with (home / ".algorun-written").open("a") as noted:
        noted.write("tensorboard\nalgo-1\n")
    (home / "algo-1").mkdir()
    (home / "algo-1" / "kept").write_text("of `algorun simulate --out home`")
    code, text = fetch("--to", "home", "empty")
    assert code == 0, text
    assert f"home/state: the job has left nothing there; that of {other} is removed\n" in text
    assert f"home/tensorboard: that of {other} is removed\n" in text
    assert [(home / name).exists() for name in ("state", "tensorboard", "algo-1")] == [False, False, True]


def test_jobs_of_one_task_share_its_state(fetch, tmp_path):
    assert fetch("--to", "home", "--what", "state", "left")[0] == 0
    facts = json.loads((tmp_path / "home" / "job.json").read_text())
    (tmp_path / "home" / "job.json").write_text(json.dumps({**facts, "job": "p-left-an-earlier-one"}))
    code, text = fetch("--to", "home", "--what", "state,logs", "left")
    assert code == 0, text
    assert (tmp_path / "home" / "state" / "step").read_text() == "7\n"


def test_a_folder_that_was_half_replaced_is_no_job_s(fetch, tmp_path, monkeypatch):
    """Ctrl-C while another job comes: its model is there already."""
    assert fetch("--to", "home", "--what", "logs", "empty")[0] == 0

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job_pieces, "write_logs", interrupted)
        assert fetch("--to", "home", "--what", "logs,model", "left")[0] == 130
    assert (tmp_path / "home" / "model").exists()
    assert [fetch("--to", "home", "--what", "logs", job)[0] for job in ("left", "empty")] == [64, 64]
    assert fetch("--to", "home", "--what", "logs,model", "left")[0] == 0
    assert fetch("--to", "home", "--what", "logs", "left")[0] == 0


def test_a_model_stays_if_the_same_job_has_none_any_more(fetch, tmp_path, jobs_root):
    assert fetch("--to", "home", "left")[0] == 0
    (archive,) = jobs_root.glob("s3/**/left/**/model.tar.gz")
    kept = archive.rename(archive.with_name("aside"))
    try:
        code, text = fetch("--to", "home", "left")
    finally:
        kept.rename(archive)
    assert "home/model: the job has left nothing there\n" in text
    assert (code, (tmp_path / "home" / "model" / "weights").read_text()) == (0, "trained\n")


def test_a_piece_that_did_not_come_is_not_noted_as_fetched(fetch, tmp_path):
    """A package `model` that the user writes later is code of the next job."""
    assert fetch("--to", ".", "empty")[0] == 0
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "net.py").write_text("mine")
    packed = {each.name for each in scan.code(tmp_path, "--code").files}
    assert packed == {"model/net.py"}
    assert fetch("--to", ".", "empty")[0] == 64
    assert (tmp_path / "model" / "net.py").read_text() == "mine"
