"""From folders of this machine to a request: which code is taken, and what is refused before data is read."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile

import pytest

from algorun.common.errors import UserError
from algorun_client.files import archive, inputs
from algorun_client.submit.assemble import prepare
from algorun_client.submit.read.program import ARGS_FILE, SCRIPT
from algorun_client.submit.read.read import read_order
from tests.client.submit.read.test_submit_options import parsed
from tests.client.submit.specs import FACTS
from tests.clones import git

LINE = "--image i --instance ml.m5.large"


@pytest.fixture
def here(tmp_path):
    folder = tmp_path / "vision"
    (folder / "src").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "src" / "deep.py").write_text("print(2)\n")
    (folder / "data" / "cat").mkdir(parents=True)
    (folder / "data" / "cat" / "1.png").write_bytes(b"x")
    (folder / ".gitignore").write_text("data/\n")
    return folder


def members(request):
    with tarfile.open(fileobj=io.BytesIO(request.uploads[0].data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


def made(here, line, number=1, **environ):
    asked = read_order(parsed(line), environ, here)
    with prepare.prepared(asked, FACTS) as make:
        return make(number)


def test_the_code_and_a_local_input(here):
    request = made(here, [*LINE.split(), "--in", "train=./data", "train.py", "--epochs", "1"])
    assert sorted(members(request)) == [".gitignore", "src/deep.py", "train.py"]
    (folder,) = request.mirrors
    assert folder.startswith(f"s3://{FACTS.bucket}/vision/train/input/train/")
    assert [upload.uri for upload in request.uploads[1:]] == [f"{folder}cat/1.png"]
    assert request.uploads[1].sha256 == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def test_a_local_input_inside_the_code_folder_goes_up_once(here):
    """Without a .gitignore too: data is no code."""
    (here / ".gitignore").unlink()
    assert "data/cat/1.png" in members(made(here, f"{LINE} train.py"))
    request = made(here, f"{LINE} --in train=./data train.py")
    assert sorted(members(request)) == ["src/deep.py", "train.py"]
    assert len(request.uploads) == 2


def test_the_same_folder_makes_the_same_request(here):
    line = f"{LINE} train.py"
    assert made(here, line).create == made(here, line).create
    (here / "src" / "deep.py").write_text("print(3)\n")
    assert made(here, line).uploads[0].uri != made(here, line.replace("train.py", "--task train ddp")).create


def test_the_commit_goes_along_and_changes_no_identity(here):
    """Of data that git does not track the commit knows nothing, and of a program everything."""
    line, name = f"{LINE} --in train=./data train.py", "ALGORUN_CODE_COMMIT"
    before = made(here, line).create["Environment"]
    git(here, "init", "-q")
    git(here, "add", "train.py", ".gitignore", "src")
    git(here, "commit", "-qm", "first")
    clean = made(here, line).create["Environment"]
    assert clean == {**before, name: git(here, "rev-parse", "HEAD")[:12]}
    (here / "src" / "new.py").write_text("")
    assert made(here, line).create["Environment"][name] == f"{clean[name]} with uncommitted changes"
    assert name not in made(here, f"{LINE} ddp").create["Environment"]


def test_a_bundled_entrypoint_takes_no_folder(here):
    assert made(here, f"{LINE} ddp --epochs 1").uploads == ()
    (here / "ddp").write_text("#!/bin/sh\n")
    assert "ddp" in members(made(here, f"{LINE} ddp"))


def test_a_shell_takes_a_folder_if_one_is_named(here):
    assert sorted(members(made(here, [*LINE.split(), "--shell", "nvidia-smi"]))) == [SCRIPT]
    assert "src/deep.py" in members(made(here, [*LINE.split(), "--code", ".", "--shell", "ls"]))


def test_long_arguments_are_a_file_of_the_archive(here):
    request = made(here, [*LINE.split(), "train.py", "x" * 3000])
    assert json.loads(members(request)[ARGS_FILE]) == ["x" * 3000]
    assert set(members(made(here, [*LINE.split(), "ddp", "x" * 3000]))) == {ARGS_FILE}


def test_a_program_below_the_current_folder(here):
    assert made(here, f"{LINE} --code src src/deep.py").create["HyperParameters"]["sagemaker_program"] == "deep.py"
    assert made(here, f"{LINE} --code src deep.py").create["HyperParameters"]["sagemaker_program"] == "deep.py"
    assert made(here, f"{LINE} src/deep.py").create["HyperParameters"]["sagemaker_program"] == "src/deep.py"
    with pytest.raises(UserError, match="PROGRAM: 'train.py' lies outside of the code folder .*/src; fix: --code"):
        made(here, f"{LINE} --code src train.py")


def test_more_code(here, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text("")
    (tmp_path / "one.txt").write_text("")
    request = made(here, f"{LINE} --add ../lib --add ../one.txt train.py")
    assert {"lib/a.py", "one.txt", "train.py"} <= set(members(request))
    with pytest.raises(UserError, match="--add: .*src: the code has 'src' already"):
        made(here, f"{LINE} --add src train.py")


def test_the_home_folder_is_no_program(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    with pytest.raises(UserError, match="--code: .* is more than a program; fix: --code DIR"):
        made(here, f"{LINE} train.py")


def test_a_job_file_elsewhere(here, tmp_path):
    (here / "algorun.toml").write_text(
        'image = "i"\ninstance = "ml.m5.large"\n[task.train]\nrun = ["train.py"]\nin.d = "data"\n'
    )
    (tmp_path / "empty").mkdir()
    request = made(tmp_path / "empty", "--file ../vision/algorun.toml --project vision")
    assert "train.py" in members(request)
    assert request.uploads[1].path == here / "data" / "cat" / "1.png"


@pytest.mark.parametrize(
    ("name", "text"), [("none.toml", "--file: none.toml: No such file"), ("src", "--file: src: Is a directory")]
)
def test_a_job_file_that_cannot_be_read(here, name, text):
    with pytest.raises(UserError, match=text):
        made(here, f"--file {name}")


def test_what_is_wrong_is_said_before_data_is_read(here, monkeypatch):
    monkeypatch.setattr(inputs, "hashed", lambda *_: pytest.fail("data was read"))
    with pytest.raises(UserError, match="--in train: shard: 1 objects for 2 hosts"):
        made(here, f"{LINE} --hosts 2 --in train=./data,shard train.py")
    with pytest.raises(UserError, match="--instance: 'ml.nope' is unknown"):
        made(here, "--image i --instance ml.nope --in train=./data train.py")


def test_what_is_left_out_is_a_warning(here, monkeypatch):
    (here / "venv").mkdir()
    (here / "venv" / "pyvenv.cfg").write_text("")
    monkeypatch.setattr(prepare, "LARGE_CODE", 10)
    warnings = made(here, f"{LINE} train.py").warnings
    assert warnings[0] == "venv is a virtual environment: left out"
    assert "the code archive has 0 MiB; .algorunignore keeps files out" in warnings[1]


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)


def test_a_forgotten_file_of_gigabytes_is_named_before_anything_is_packed(here, monkeypatch):
    monkeypatch.setattr(archive, "pack", lambda *_: pytest.fail("it was packed"))
    (here / "data").rename(here / "weights")
    sparse(here / "weights" / "old.bin", 6_000_000_000)
    sparse(here / "core.123", 84_000_000)
    with pytest.raises(UserError) as error:
        read_order(parsed(f"{LINE} train.py"), {}, here)
    assert str(error.value) == (
        f"--code: {here}: 6.1 GB in 6 files, the largest: weights/old.bin (6.0 GB), core.123 (84.0 MB), src/deep.py (9 B); "
        "allowed: up to 2.0 GB; fix: .algorunignore keeps files out, --in takes data, --max-code 7GB sends all of it"
    )
    assert read_order(parsed(f"{LINE} --max-code 7GB train.py"), {}, here).code
    (here / ".algorunignore").write_text("weights/\n")
    assert read_order(parsed(f"{LINE} train.py"), {}, here).code


def test_what_add_gives_is_named_where_the_code_folder_stays_here(here):
    sparse(here / "old.bin", 6_000_000_000)
    asked = parsed(f"{LINE} --add old.bin ddp")
    with pytest.raises(UserError, match=rf"^--code: {here}/old.bin: 6\.0 GB in 1 file, the largest: old\.bin"):
        read_order(asked, {}, here)


def test_large_code_and_data_are_said_first(here, monkeypatch, capsys):
    monkeypatch.setattr(prepare, "LARGE_CODE", 20)
    monkeypatch.setattr(prepare, "LARGE_DATA", 0)
    made(here, f"{LINE} --in train=./data train.py")
    assert capsys.readouterr().err.splitlines() == [
        "algorun: packing 24 B in 3 files, the largest: src/deep.py (9 B), train.py (9 B), .gitignore (6 B)",
        "algorun: reading --in train: 1 B in 1 file, the largest: cat/1.png (1 B)",
    ]


@pytest.mark.parametrize("wrong", ["2", "GB", "1e3GB", "2 GB", "2PB", ""])
def test_a_size_needs_its_unit(here, wrong):
    with pytest.raises(UserError, match="--max-code: .* is not a size; allowed: such as 500MB or 2.5GB"):
        read_order(parsed([*LINE.split(), "--max-code", wrong, "train.py"]), {}, here)


def test_an_ignored_program_is_named(here):
    (here / ".algorunignore").write_text("train.py\n")
    with pytest.raises(
        UserError,
        match="'train.py' is not among the 3 files of the code; .*check the name, --code, .gitignore and .algorunignore",
    ):
        made(here, f"{LINE} train.py")


def test_the_bucket_of_the_environment(here):
    facts = dataclasses.replace(FACTS, bucket=None)
    asked = read_order(parsed(f"{LINE} train.py"), {"ALGORUN_BUCKET": "s3://mine/"}, here)
    with prepare.prepared(asked, facts) as make:
        assert make.address.uri == "s3://mine/vision/train"
