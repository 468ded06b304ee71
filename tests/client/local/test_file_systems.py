"""Inputs that are file systems of EFS or FSx: on this machine a folder, mounted read-only into every host."""

from __future__ import annotations

import json
import signal

import pytest

from algorun.common import own_opt_ml
from algorun.common.errors import UserError
from algorun_client.commands.main import main
from algorun_client.local.job_description import described
from algorun_client.local.job_folder import JobFolder
from algorun_client.local.simulated_hosts import SimulatedHosts
from algorun_client.request.model import Kind
from tests.client.local.local_jobs import Local, training
from tests.conftest import clean_environ

FSX = "fs-0123456789abcdef0"
# Each rank says what it sees below both paths, and what happens when it writes.
PROGRAM = """
import json, os, pathlib
base = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"])
def wrote(path):
    try:
        path.write_text("by a rank")
    except OSError as error:
        return error.strerror
    return "written"
seen = {}
for data in (base / "input/data/train", pathlib.Path("/opt/ml/input/data/train")):
    if data.is_dir():
        seen[str(data)[:7]] = (sorted(path.name for path in data.iterdir()), wrote(data / "new"), wrote(data / "a.txt"))
print("seen " + json.dumps(seen), flush=True)
assert (base / "checkpoints" / os.environ["SM_CURRENT_HOST"]).write_text("x")
"""


def mounted(mode="ro", path="/bv5mzbmv/images"):
    source = {"FileSystemId": FSX, "FileSystemType": "FSxLustre", "DirectoryPath": path, "FileSystemAccessMode": mode}
    return {"InputDataConfig": [{"ChannelName": "train", "DataSource": {"FileSystemDataSource": source}}]}


@pytest.fixture
def local(tmp_path):
    return Local(tmp_path / "root")


@pytest.fixture
def data(local, tmp_path):
    """Made as the error of `test_a_file_system_without_a_folder` says: by a link."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("a")
    link = local.root / "file-systems" / FSX / "bv5mzbmv" / "images"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "mine")
    return tmp_path / "mine"


def run(local, data, nothing_left, **changed):
    request = training(local.store, "job", PROGRAM, marker=nothing_left, **mounted(**changed))
    local.platform.create_training_job(**request)
    answer = local.ended("job")
    assert answer["TrainingJobStatus"] == "Completed", local.lines("job")
    return [json.loads(line.split("seen ")[1]) for line in local.lines("job") if "seen " in line]


def test_every_host_reads_the_folder_and_none_changes_it(local, data, nothing_left, tmp_path):
    if why := own_opt_ml.why_shared(tmp_path, []):
        pytest.skip(f"this machine mounts nothing: {why}")
    found = run(local, data, nothing_left)
    refused = [["a.txt"], "Read-only file system", "Read-only file system"]
    assert len(found) == 2
    for each in found:
        assert list(each.values()) == [refused, refused]  # by the host's own path, and by /opt/ml
    assert (data / "a.txt").read_text() == "a"
    assert [path.name for path in data.iterdir()] == ["a.txt"]


def test_a_request_may_mount_it_to_write(local, data, nothing_left, tmp_path):
    if why := own_opt_ml.why_shared(tmp_path, []):
        pytest.skip(f"this machine mounts nothing: {why}")
    found = run(local, data, nothing_left, mode="rw")
    assert {tuple(each[1:]) for seen in found for each in seen.values()} == {("written", "written")}
    assert (data / "new").read_text() == "by a rank"


def test_a_machine_that_mounts_nothing_has_a_link_and_says_so(local, data, nothing_left, monkeypatch, tmp_path):
    request = training(local.store, "job", PROGRAM, marker=nothing_left, **mounted())
    job = described(Kind.TRAINING, request)
    hosts = SimulatedHosts(job, tmp_path / "environments", local.root / "file-systems")
    monkeypatch.setattr(own_opt_ml, "why_shared", lambda *_: "it is forbidden")
    trees = {host: tmp_path / host for host in job.cluster.hosts}
    for tree in trees.values():
        for folder in ("input/data/train", "code", "checkpoints"):
            (tree / folder).mkdir(parents=True)
    try:
        hosts.start(trees, {host: tmp_path / f"{host}.log" for host in trees})
        hosts.signal(signal.SIGKILL)  # what is said is said before the launcher starts
        while not hosts.have_ended:
            hosts.pump(0.1)
    finally:
        hosts.close()
    for host, tree in trees.items():
        assert (tree / "input/data/train" / "a.txt").read_text() == "a"
        text = next((tmp_path).glob(f"{host}.log*")).read_text()
        assert f"is a link to {data}, which the program can change" in text
        assert "it is forbidden" in text


def test_a_file_system_without_a_folder_is_one_error(local):
    request = training(local.store, "job", PROGRAM, **mounted())
    folder = local.root / "file-systems" / FSX / "bv5mzbmv" / "images"
    with pytest.raises(
        UserError, match=f"input train: on this machine .* is the folder {folder}, .*ln -s DATA {folder}"
    ):
        local.platform.create_training_job(**request)
    with pytest.raises(UserError, match="input train: DirectoryPath leads out"):
        local.platform.create_training_job(**training(local.store, "job", PROGRAM, **mounted(path="/m/../../x")))
    assert JobFolder.all(local.root, Kind.TRAINING) == []


def test_submit_says_what_is_missing_and_the_corrected_line_runs(tmp_path, monkeypatch, capsys, nothing_left):
    """The refused try leaves nothing that the next one would have to wait for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import os\nprint('seen', os.listdir(os.environ['SM_CHANNEL_TRAIN']))\n")
    folder = tmp_path / "root" / "file-systems" / "fs-01234567" / "images"

    def submit(kind):
        words = ["submit", "--where", "local", "--in", f"train=efs:fs-01234567/{kind}", "train.py"]
        code = main(words, clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root"), ALGORUN_TEST=nothing_left))
        found = capsys.readouterr()
        return code, found.out + found.err

    code, text = submit("images")
    assert (code, f"ln -s DATA {folder}" in text) == (64, True), text
    folder.mkdir(parents=True)
    (folder / "1.png").write_text("x")
    for _ in range(2):  # nobody compares the files, so the second line runs the task again
        code, text = submit("images")
        assert (code, "seen ['1.png']" in text) == (0, True), text
    assert "is a file system, whose files are not compared" in text
