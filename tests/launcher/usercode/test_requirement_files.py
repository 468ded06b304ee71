"""Which requirements are the same for two jobs, so that they may share an environment."""

from __future__ import annotations

import os
import shutil

import pytest

from algorun.usercode import requirement_files
from algorun.usercode.requirement_files import Contents, contents


@pytest.fixture
def code(tmp_path):
    (tmp_path / "requirements.txt").write_text(
        "# a comment\n-r more/base.txt\n--constraint=limits.txt\n--find-links wheels\n./mine[extra] ; python_version > '3'\n"
        "own @ file://${HERE}/own.tar.gz\nnumpy>=1 \\\n  --hash=sha256:00\n"
    )
    for name, text in {
        "more/base.txt": "-cdeep.txt\n",
        "more/deep.txt": "torch<3\n",
        "limits.txt": "scipy<2\n",
        "wheels/a-1.whl": "a",
        "mine/pyproject.toml": "",
        "mine/src/mine.py": "X = 1\n",
        "own.tar.gz": "x",
        "train.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def read(code, *, package: bool = False) -> Contents:
    return contents(str(code / "requirements.txt"), str(code), {"HERE": str(code)}, package=package)


@pytest.mark.parametrize(
    "name",
    ["requirements.txt", "more/base.txt", "more/deep.txt", "limits.txt", "wheels/a-1.whl", "wheels/b-1.whl", "mine/src/mine.py", "mine/new.py", "own.tar.gz"],
)  # fmt: skip
def test_a_change_of_what_the_file_names_is_another_environment(name, code):
    before = read(code)
    assert (before.editable, before.moving) == (False, False)
    with open(code / name, "a") as file:
        file.write("\nmore\n")
    assert read(code) != before


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_file_with_a_byte_order_mark_is_read_as_pip_reads_it(encoding, code):
    """PowerShell's `pip freeze > requirements.txt` writes UTF-16; editors of Windows write a mark before UTF-8."""
    lines = (code / "requirements.txt").read_text().split("\n", 1)[1]  # begins with -r
    (code / "requirements.txt").write_bytes(lines.encode(encoding))
    before = read(code)
    (code / "more/base.txt").write_text("other\n")
    assert read(code) != before
    (code / "requirements.txt").write_bytes("-e ./mine\r\ngit+https://h/x@main\r\n".encode(encoding))
    assert (read(code).editable, read(code).moving) == (True, True)


@pytest.mark.parametrize(
    "name", ["train.py", "mine/build/lib/mine.py", "mine/src/__pycache__/mine.pyc", "mine/mine.egg-info/PKG-INFO"]
)
def test_what_is_not_installed_and_what_a_build_leaves_does_not_count(name, code):
    before = read(code)
    (code / name).parent.mkdir(parents=True, exist_ok=True)
    (code / name).write_text("changed")
    assert read(code) == before


def test_a_package_counts_as_a_whole(code):
    before = read(code, package=True)
    (code / "train.py").write_text("changed")
    assert read(code, package=True) != before != read(code)


def test_two_folders_with_the_same_files_are_the_same(code, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "code"
    shutil.copytree(code, other)
    assert read(other) == read(code)


@pytest.mark.parametrize(
    ("line", "editable", "moving"),
    [
        ("-e .", True, False),
        ("--editable=./mine", True, False),
        ("git+https://host/x.git", False, True),
        ("x @ git+https://user:secret@host/x.git@main#egg=x", False, True),
        (f"x @ git+https://host/x.git@{'a1' * 20}#egg=x", False, False),
        ("-e git+https://host/x.git@v1#egg=x", False, True),
        ("torch==2.0 # not git+https://host/x.git", False, False),
        ("./nothing-there", False, False),
        ("-r nothing-there.txt", False, False),
    ],
)
def test_links_and_branches_are_known(line, editable, moving, code):
    (code / "requirements.txt").write_text(f"{line}\n")
    found = read(code)
    assert (found.editable, found.moving) == (editable, moving)


def test_files_that_name_each_other_end(code):
    (code / "more" / "base.txt").write_text("-r ../requirements.txt\n-r base.txt\n")
    assert read(code)


def test_a_large_file_counts_by_size_and_time(code, monkeypatch):
    monkeypatch.setattr(requirement_files, "SMALL", 3)
    (code / "mine" / "weights.bin").write_bytes(b"12345")
    before, times = read(code), os.stat(code / "mine" / "weights.bin")
    (code / "mine" / "weights.bin").write_bytes(b"54321")
    os.utime(code / "mine" / "weights.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert read(code) == before
    os.utime(code / "mine" / "weights.bin", ns=(0, 0))
    assert read(code) != before
