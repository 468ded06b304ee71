"""The code archive: the same bytes for the same files, and no key in it."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.archives import unpack
from algorun.common.errors import UserError
from algorun_client.files import archive, inputs, scan, secret_files
from tests.conftest import examples

KEY_ID = "AKIA" + "QYLPMN5HHHFPZAM2"
KEY_SECRET = "aws_secret_access_key = " + "wJalrXUtnFEMIK7MDENGbPxRfiCYzzzzzzzzKEYz"
PRIVATE_KEY = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEpAIBAAKCAQEA0Z3VS5JJcds3xfnygVoRSxKz4FRxu3kq\n"

LETTERS = "aB3dE5gH7jK9mN1pQ2sT4vW6"
TOKENS = {  # made up; joined here, so that no scanner takes this file for a leak
    "a token of Hugging Face": "hf_" + LETTERS + "aB3dE5gH7j",
    "a token of GitHub": "ghp_" + LETTERS + "aB3dE5gH7jK9",
    "a key of OpenAI": "sk-proj-" + LETTERS * 2 + "_-T3BlbkFJ" + LETTERS * 2,
    "a key of Anthropic": "sk-ant-" + "api03-" + LETTERS * 3 + "-_" + LETTERS[:21] + "AA",
    "a token of GitLab, npm, PyPI, Slack or Google": "glpat-" + LETTERS[:20],
}


def packed(folder, tmp_path, added=None):
    return archive.pack(scan.code(folder, "--code").files, added or {}, tmp_path, "--code")


def make(folder):
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "sub" / "größe.txt").write_text("x" * 100_000)
    (folder / "sub" / "link").symlink_to("../train.py")
    return folder


def test_each_file_has_a_text_that_changes_with_it(tmp_path):
    """Without what was added for the launcher: that follows from the options."""
    folder = make(tmp_path / "one")
    before = packed(folder, tmp_path, {".algorun/args.json": b"[]"}).contents
    assert sorted(before) == ["run.sh", "sub/größe.txt", "sub/link", "train.py"]
    assert before["train.py"] == hashlib.sha256(b"print(1)\n").hexdigest()
    assert before["sub/link"] == "link to ../train.py"
    (folder / "run.sh").chmod(0o644)
    after = packed(folder, tmp_path).contents
    assert {name for name in before if before[name] != after[name]} == {"run.sh"}


def test_the_same_files_make_the_same_bytes(tmp_path):
    """Other times, another folder, another order of creation, other rights of the group."""
    one, two = make(tmp_path / "one"), tmp_path / "two"
    subprocess.run(["cp", "-r", one, two], check=True)
    os.utime(two / "train.py", (1, 1))
    (two / "train.py").chmod(0o664)
    first, second = packed(one, tmp_path), packed(two, tmp_path)
    assert first == second
    (two / "train.py").write_text("print(2)\n")
    assert packed(two, tmp_path).sha256 != first.sha256


def test_a_large_archive_has_the_bytes_of_a_small_one(tmp_path, monkeypatch):
    folder = make(tmp_path / "code")
    small = packed(folder, tmp_path)
    monkeypatch.setattr(archive, "IN_MEMORY", 10)
    large = packed(folder, tmp_path)
    assert large.path is not None
    assert (large.sha256, large.size, large.path.read_bytes()) == (small.sha256, small.size, small.data)


def test_the_launcher_unpacks_it(tmp_path):
    made = packed(
        make(tmp_path / "code"), tmp_path, {".algorun/args.json": b"[]", ".algorun/program.sh": b"#!/bin/sh\n"}
    )
    (tmp_path / "a.tar.gz").write_bytes(made.data)
    (tmp_path / "out").mkdir()
    unpack(
        tmp_path / "a.tar.gz",
        tmp_path / "out",
        "archive",
        place="the code folder",
        fix="put data into a channel instead",
    )
    assert (tmp_path / "out" / "sub" / "link").read_text() == "print(1)\n"
    assert os.access(tmp_path / "out" / "run.sh", os.X_OK)
    assert os.access(tmp_path / "out" / ".algorun" / "program.sh", os.X_OK)
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        assert len(tar.getnames()) == 6


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (KEY_ID, "an AWS access key ID"),
        (KEY_SECRET, "an AWS secret access key"),
        (PRIVATE_KEY, "a private key"),
        *((token, kind) for kind, token in TOKENS.items()),
    ],
)
@pytest.mark.parametrize("before", [0, 16 * 1024 - 10, 300_000])  # tarfile reads 16 KiB at a time
def test_no_key_gets_into_an_archive(tmp_path, text, kind, before):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "settings.py").write_text("#" * before + "\n" + text + "\n")
    with pytest.raises(UserError, match=f"--code: settings.py holds {kind}; fix: remove it from the file"):
        packed(tmp_path / "code", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "XAKIA" + "QYLPMN5HHHFPZAM2Z",
        'HEADER = "-----BEGIN PRIVATE KEY-----"',
        "aws_secret_access_key = os.environ[name]",
        "hf_" + "x" * 34,
        "token = 'hf_YOUR_TOKEN'",
        "sk-" + "." * 48,
        "task-" + LETTERS * 2,
        "ghp_" + "1234" * 9,
        "risk-" + LETTERS,
        "sk-learn-contrib/some-package-with-a-long-name-and-more-words",
    ],
)
def test_words_about_keys_are_no_keys(text):
    assert secret_files.in_text(text.encode()) == ""


@given(st.binary(max_size=3000), st.integers(0, 2000))
@examples(200)
def test_a_key_is_found_wherever_reads_are_cut(noise, cut):
    content = b"\n" + noise + b"\n" + KEY_ID.encode() + b"\n" + noise
    watched = archive.CheckedFile(io.BytesIO(content), "x", "--code")
    with pytest.raises(UserError):
        list(iter(lambda: watched.read(cut + 1), b""))


def test_this_repository_holds_no_key(tmp_path):
    """What the rules call a key is none in 1,000 files of real code."""
    from tests.conftest import ROOT

    made = archive.pack(scan.code(ROOT / "launcher", "--code").files, {}, tmp_path, "--code")
    with tarfile.open(fileobj=io.BytesIO(made.data)) as tar:
        assert "algorun/cli.py" in tar.getnames()


def test_inputs_are_hashed(tmp_path):
    folder = make(tmp_path / "data")
    found = {file.name: file for file in inputs.hashed(scan.data(folder, "--in train"), "--in train")}
    assert found["sub/link"].sha256 == found["train.py"].sha256  # data has files alone
    assert found["train.py"].sha256 == "cc42155088fca5730758db72b2a5bca33112a941dfaa2d43098ec422ce4ea213"
    assert found["sub/größe.txt"].size == 100_000


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    found = scan.FoundFile("gone.py", tmp_path / "gone.py", 3)
    with pytest.raises(UserError, match="gone.py: No such file or directory"):
        archive.pack([found], {}, tmp_path, "--code")
    with pytest.raises(UserError, match="gone.py: No such file or directory"):
        inputs.hashed(scan.FileScan(tmp_path, (found,)), "--in train")
