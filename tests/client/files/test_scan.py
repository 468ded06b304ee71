"""Which files of a folder go up, and what is refused before anything does."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from algorun.common.errors import UserError
from algorun.common.written import GENERATOR, mark
from algorun_client.files import scan


def tree(root, *names, **texts):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    for name, text in texts.items():
        (root / name).write_text(text)
    return root


def names(found):
    return [file.name for file in found.files]


def git(folder, *words):
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *words], cwd=folder, env=environ, check=True, capture_output=True)


@pytest.mark.parametrize("rule", ["!*/", "!/*/", "!**/", ".*\n!.git*", "!.git", "!.git/", "!*"])
def test_no_rule_takes_back_the_history(tmp_path, rule):
    """Its configuration holds the address of the remote, often with a token in it; git itself never sends it."""
    tree(tmp_path, "a.py", ".git/config", "sub/b.py", "sub/.git", ".hg/hgrc", ".jj/repo/config")
    (tmp_path / ".gitignore").write_text(rule + "\n")
    (tmp_path / ".algorunignore").write_text(rule + "\n")
    assert set(names(scan.code(tmp_path, "--code"))) <= {".algorunignore", ".gitignore", "a.py", "sub/b.py"}


def test_data_without_its_history(tmp_path):
    """A data set that was cloned from a hub has all of its large files once more below .git."""
    tree(tmp_path, "data/a.txt", "data/.git/lfs/objects/a", "other/.git/config")
    (tmp_path / "data" / "more").symlink_to(tmp_path / "other" / ".git")
    found = scan.data(tmp_path / "data", "--in train")
    assert names(found) == ["a.txt"]
    assert sorted(found.notices) == [
        ".git is the history of a clone: left out",
        "more leads to the history of a clone: left out",
    ]


def test_a_rule_takes_back_only_what_it_names(tmp_path):
    tree(tmp_path, "src/a.py", "src/secrets/b", "src/__pycache__/a.pyc", "secrets/b")
    (tmp_path / ".gitignore").write_bytes(b"\xef\xbb\xbfsecrets/\n!/src\n!*/\nsecrets/\n!/src\n")
    assert names(scan.code(tmp_path, "--code")) == [".gitignore", "src/a.py"]


def test_files_that_git_tracks_go_up_although_a_rule_names_them(tmp_path):
    tree(tmp_path, "a.py", "out/kept.bin", "out/other.bin", "out/deep/kept.txt", "gone.bin", "loose.bin", "mine.bin")
    (tmp_path / ".gitignore").write_text("out/\n*.bin\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "--force", "out/kept.bin", "out/deep/kept.txt", "gone.bin", "mine.bin")
    (tmp_path / "gone.bin").unlink()
    (tmp_path / ".algorunignore").write_text("mine.bin\n")
    found = scan.code(tmp_path, "--code")
    assert names(found) == [".algorunignore", ".gitignore", "a.py", "out/deep/kept.txt", "out/kept.bin"]
    assert not found.notices
    assert names(scan.code(tmp_path / "out", "--code")) == ["deep/kept.txt", "kept.bin"]


def test_a_clone_is_packed_without_git_and_says_what_stays(tmp_path, monkeypatch):
    tree(tmp_path, "a.py", "a.bin")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "--force", "a.bin")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = scan.code(tmp_path, "--code")
    assert names(found) == [".gitignore", "a.py"]
    assert found.notices == (
        "files that .gitignore names stay at home, also those that git tracks: git is not installed",
    )


def test_a_repository_above_the_folder_counts_as_for_git(tmp_path):
    tree(tmp_path, "src/a.py", "src/a.log", "src/big/data.bin")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*.log\n/src/big/\n")
    assert names(scan.code(tmp_path / "src", "--code")) == ["a.py"]


def test_algorunignore_overrules_gitignore_and_the_defaults(tmp_path):
    tree(tmp_path, "a.py", "model.bin", "notes.txt", "__pycache__/a.pyc", ".git/config")
    (tmp_path / ".gitignore").write_text("model.bin\n")
    (tmp_path / ".algorunignore").write_text("!model.bin\nnotes.txt\n")
    assert names(scan.code(tmp_path, "--code")) == [".algorunignore", ".gitignore", "a.py", "model.bin"]


def test_data_knows_algorunignore_alone(tmp_path):
    """A data folder inside a repository has a .gitignore that names all of its files, so that git keeps the folder."""
    tree(tmp_path, "cat/1.png", "dog/1.png", "dog/raw.tif")
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / ".algorunignore").write_text("*.tif\n")
    assert names(scan.data(tmp_path, "--in train")) == [".gitignore", "cat/1.png", "dog/1.png"]


def test_one_file_may_be_an_input(tmp_path):
    tree(tmp_path, "train.tar", "other")
    assert names(scan.data(tmp_path / "train.tar", "--in train")) == ["train.tar"]


def test_links_inside_stay_links_and_others_stand_for_their_target(tmp_path):
    tree(tmp_path, "code/real/a.py", "outside/lib/b.py")
    code = tmp_path / "code"
    (code / "near").symlink_to("real")
    (code / "sub").mkdir()
    (code / "sub" / "up.py").symlink_to(code / "real" / "a.py")
    (code / "far").symlink_to(tmp_path / "outside")
    (code / "lost").symlink_to("nothing")
    found = scan.code(code, "--code")
    assert [(file.name, file.link) for file in found.files] == [
        ("far/lib/b.py", ""), ("near", "real"), ("real/a.py", ""), ("sub/up.py", "../real/a.py"),
    ]  # fmt: skip
    assert found.notices == ("lost is a link to nothing: left out",)


@pytest.mark.parametrize("target", ["loop", ".", "..", "../sub"])
@pytest.mark.parametrize("is_data", [False, True])
def test_a_symlink_loop_is_one_error(tmp_path, target, is_data):
    tree(tmp_path, "code/sub/a.py")
    link = tmp_path / "code" / "loop" if target == "loop" else tmp_path / "code" / "sub" / "loop"
    link.symlink_to(target)
    if target == "..":
        link.unlink()
        link.symlink_to(tmp_path / "code")
    with pytest.raises(UserError, match=r"loop -> .* is a loop of symbolic links; fix: remove it"):
        scan.data(tmp_path / "code", "--in train") if is_data else scan.code(tmp_path / "code", "--code")


def test_a_loop_outside_of_the_folder_ends_too(tmp_path):
    tree(tmp_path, "code/a.py", "outside/b.py")
    (tmp_path / "outside" / "again").symlink_to(tmp_path / "outside")
    (tmp_path / "code" / "far").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="far/again -> .* loop"):
        scan.code(tmp_path / "code", "--code")


def test_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "MOST_FILES", 5)
    tree(tmp_path, *(f"{number}.txt" for number in range(5)))
    with pytest.raises(
        UserError, match="has 5 files or more; allowed: fewer than 5; fix: name what is not needed in .algorunignore"
    ):
        scan.code(tmp_path, "--code")
    with pytest.raises(UserError, match="--in train: .*fix: pack them into some tar files, and add `,extract`"):
        scan.data(tmp_path, "--in train")


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        "sub/.env.local",
        "prod.env",
        "id_rsa",
        "keys/server.key",
        ".aws/credentials",
        "x.pfx",
        ".netrc",
        "home/.ssh/config",
        "kaggle.json",
        ".npmrc",
        ".pgpass",
        ".vault-token",
        ".boto",
        ".s3cfg",
        "rclone.conf",
        "infra/terraform.tfstate",
        ".cache/huggingface/token",
    ],
)
def test_secrets_are_refused_by_name(tmp_path, name):
    tree(tmp_path, "a.py", name)
    for read in (scan.code, scan.data):
        with pytest.raises(UserError) as error:
            read(tmp_path, "--in train")
        assert str(error.value) == (
            f"--in train: {name}: keys and secrets do not go up; "
            "fix: name them in .algorunignore; pass values with --env NAME"
        )
    (tmp_path / ".algorunignore").write_text(f"/{name}\n")
    assert name not in names(scan.code(tmp_path, "--code"))


@pytest.mark.parametrize("target", ["outside/.env", "outside/.aws/credentials", "outside/.aws"])
@pytest.mark.parametrize("read", [scan.code, scan.data])
def test_a_link_hides_no_secret(tmp_path, target, read):
    tree(tmp_path, "code/a.py", "outside/.env", "outside/.aws/credentials")
    (tmp_path / "code" / "link").symlink_to(tmp_path / target)
    with pytest.raises(UserError, match="--in train: link.*: keys and secrets do not go up"):
        read(tmp_path / "code", "--in train")


@pytest.mark.parametrize("name", [".env.example", "environment.yml", "keyboard.py", "monkey.jpg", "ca.pem", "env.py"])
def test_names_that_only_look_like_secrets_go_up(tmp_path, name):
    tree(tmp_path, name)
    assert names(scan.code(tmp_path, "--code")) == [name]


def test_what_no_rule_names_is_said(tmp_path):
    tree(tmp_path, "a.py", "venv/pyvenv.cfg", "venv/lib/x.py", ".algorun/old")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket"))
        found = scan.code(tmp_path, "--code")
    assert names(found) == ["a.py"]
    assert sorted(found.notices) == [
        "pipe is a socket, a pipe or a device: left out",
        "socket is a socket, a pipe or a device: left out",
        "venv is a virtual environment: left out",
    ]


def test_what_algorun_has_written_is_no_code(tmp_path):
    """By marks in it: a user's own files of the same names go up, and what was moved stays at home."""
    tree(tmp_path, "a.py", "job-1/model/w.bin", "job-1/logs/a.log", "job-1/mine.txt", "mine/model/w.bin", "job.json")
    mark(tmp_path / "job-1", ["model"])
    mark(tmp_path / "job-1", ["logs", "metrics.json"])
    head = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    tree(tmp_path, **{"report.html": head + f'<meta name="generator" content="{GENERATOR}">', "mine.html": head})
    (tmp_path / "moved").mkdir()
    (tmp_path / "job-1").rename(tmp_path / "moved" / "job-1")
    found = scan.code(tmp_path, "--code")
    assert names(found) == ["a.py", "job.json", "mine.html", "mine/model/w.bin", "moved/job-1/mine.txt"]
    assert found.notices == ("written by algorun and left out: moved/job-1/logs, moved/job-1/model, report.html",)
    assert "w.bin" in names(scan.data(tmp_path / "moved" / "job-1" / "model", "--in"))
    assert ".algorun-written" not in names(scan.data(tmp_path / "moved" / "job-1", "--in"))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda folder: None, "does not exist; fix: name a folder of this machine, or s3://BUCKET/KEY"),
        (lambda folder: folder.mkdir(), "has no file"),
    ],
)
def test_data_that_is_not_there(tmp_path, make, text):
    make(tmp_path / "data")
    with pytest.raises(UserError, match=text):
        scan.data(tmp_path / "data", "--in train")


def test_a_name_that_s3_cannot_hold(tmp_path):
    (tmp_path / os.fsdecode(b"bad\xff.txt")).write_text("x")
    with pytest.raises(UserError, match="is not UTF-8; fix: rename it"):
        scan.data(tmp_path, "--in train")


KEY = "-----BEGIN RSA " + "PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEAxyzxyzxyzxyz" * 3 + "\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\n" + "MIIDdzCCAl+gAwIBAgIEAgAAuTANBg" * 3 + "\n"


@pytest.mark.parametrize("name", ["server.pem", "deep/Bundle.PEM", "server.crt"])
def test_a_certificate_is_data_and_its_private_key_is_not(tmp_path, name):
    """Names such as *.pem stand for both, so the file itself is looked at."""
    file = tmp_path / "data" / name
    file.parent.mkdir(parents=True)
    file.write_text(CERTIFICATE)
    assert [found.name for found in scan.data(tmp_path / "data", "--in train").files] == [name]
    file.write_text(CERTIFICATE * 2000 + KEY)
    for where in (tmp_path / "data", file):
        with pytest.raises(
            UserError, match="--in train: .*: keys and secrets do not go up; fix: name them in .algorunignore"
        ):
            scan.data(where, "--in train")
