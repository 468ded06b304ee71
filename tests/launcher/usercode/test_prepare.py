"""The preparation of a code folder: alone, completed by the next one if it was killed, and never without a word."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile

import pytest

from algorun.common import STAGE, codec
from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import replace
from algorun.job.usercode import Setup, has_files, needed, passed_over
from algorun.usercode.prepare import prepare

PREPARE_AND_COUNT = """
import os, sys
from algorun.usercode import prepare
assert prepare.main() == 0
print(len(os.listdir(sys.argv[3])))
"""


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_launchers_that_share_a_code_folder_all_get_every_file(tmp_path):
    """Hosts of the SDK's local mode share /opt/ml/code. One removed the other's half, and then began with it."""
    files = {f"{number}.py": b"x" * 2000 for number in range(300)} | {"train.py": b""}
    (tmp_path / "source.tar").write_bytes(tar_of(files))
    for attempt in range(3):
        code = tmp_path / f"code-{attempt}"
        code.mkdir()
        setup = json.dumps(codec.to_json(Setup(str(tmp_path / "source.tar"), str(code), "train.py")))
        begun = [
            subprocess.Popen(
                [sys.executable, "-c", PREPARE_AND_COUNT, setup, str(tmp_path / f"result-{number}"), str(code)],
                stdout=subprocess.PIPE,
            )
            for number in range(4)
        ]
        assert [process.communicate(timeout=60)[0].split()[-1] for process in begun] == [b"301"] * 4
        assert sorted(os.listdir(code)) == sorted(files)


def test_a_preparation_that_was_killed_while_it_moved_is_finished(tmp_path):
    code = tmp_path / "code"
    (code / f"{STAGE}-complete" / "lib").mkdir(parents=True)
    (code / f"{STAGE}-complete" / "lib" / "b.py").write_text("b")
    (code / "train.py").write_text("moved before")
    assert not has_files(code)
    setup = Setup("s3://never/asked.tar.gz", str(code), "train.py")
    assert needed(setup) == setup
    prepare(setup, {})
    assert sorted(os.listdir(code)) == ["lib", "train.py"]
    assert (code / "lib" / "b.py").read_text() == "b"


def test_requirements_that_are_no_file_are_an_error(tmp_path):
    code = tmp_path / "code"
    (code / "requirements.txt").mkdir(parents=True)
    setup = Setup("", str(code), "train.py")
    with pytest.raises(UserError, match=r"requirements.txt: is a folder; allowed: a file; fix: make it a file"):
        needed(setup)
    (code / "requirements.txt").rmdir()
    (code / "requirements.txt").symlink_to("../shared/requirements.txt")
    with pytest.raises(UserError, match=r"is a link to ../shared/requirements.txt, which is not there"):
        needed(setup)


def test_code_that_is_not_fetched_is_named(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    setup = Setup("s3://bucket/source.tar.gz", str(code), "train.py")
    assert passed_over(setup) == ""
    for name in "abcd":
        (code / name).touch()
    assert passed_over(setup) == (
        f"sagemaker_submit_directory: 's3://bucket/source.tar.gz' is not fetched: {code} has files already (a, b, c and 1 "
        "more), and they count more; fix: an image without files there, or a job without this address"
    )
    assert "hidden" not in passed_over(replace(setup, uri="https://user:hidden@host/x"))
    for uri in ("", str(code), f"file://{code}", f"{code}/"):
        assert passed_over(replace(setup, uri=uri)) == ""
