"""What algorun's client asks of the launcher, on real hosts: arguments in a file, extraction, the format of the request."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import FAILS_ALONE, algorun, commands
from tests.launcher.common.test_archives import archive, member
from tests.launcher.whole.code_folders import HOSTS, Cluster, tarball, tree

LOOKS = """
import os, pathlib, sys
train = pathlib.Path(os.environ["SSM_CHANNEL_TRAIN"])
state = pathlib.Path(os.environ["SSM_INSTANCE_STATE"])
print("sees", len(sys.argv[2]), sorted(path.name for path in (train / "n01").iterdir()), state.is_dir(), flush=True)
"""


def channel(base: Path, host: str, *hosts: str) -> Path:
    """The channel `train` of a host, described as SageMaker does it. Returns its folder."""
    folder = base / host / "input" / "data" / "train"
    folder.mkdir(parents=True)
    described = {"train": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated"}}
    (base / host / "input" / "config" / "inputdataconfig.json").write_text(json.dumps(described))
    return folder


def test_fetched_arguments_and_extracted_channels_reach_the_ranks_of_every_host(tmp_path, nothing_left):
    args = json.dumps(["--text", "x" * 3000])
    source = tarball(tmp_path / "code.tar.gz", {"train.py": LOOKS, "run/args.json": args})
    wishes = {"algorun_args_file": "run/args.json", "algorun_extract": ["train"], "algorun_restarts": 1}
    for host in HOSTS:
        tree(tmp_path, host, HOSTS, sagemaker_program="train.py", sagemaker_submit_directory=str(source), **wishes)
        archive(channel(tmp_path, host) / "a.tar.gz", member(f"n01/{host}.jpg", "x"))
        environ = {"ALGORUN_REQUEST_FORMAT": "1", "SSM_STATE": str(tmp_path / "state")}
    codes, outs = Cluster(tmp_path, nothing_left, **environ).end()
    assert codes == [0, 0], outs
    for rank, host in enumerate(HOSTS):
        assert f"[setup {host}] unpacking 1 archives (" in outs[host]
        assert f"[setup {host}] unpacked 1 files (1 B) of channel train in " in outs[host]
        assert f"[{rank} {host}] sees 3000 ['{host}.jpg'] True" in outs[host]
    assert sorted(os.listdir(tmp_path / "state")) == list(HOSTS)


def test_a_restarted_attempt_unpacks_nothing_again(tmp_path, nothing_left):
    tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program="train.py", algorun_extract=["train"], algorun_restarts=1)
    archive(channel(tmp_path, "algo-1") / "a.tar", member("x.txt", "x"))
    code = tmp_path / "algo-1" / "code"
    code.mkdir()
    (tmp_path / "algo-1" / "checkpoints").mkdir()
    (code / "train.py").write_text(
        "import os, sys\nfirst = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "folder = os.environ['SM_CHANNEL_TRAIN']\nopen(folder + '/x.txt', 'a').write('y')\n"
        "open(folder + '/../../../checkpoints/c', 'w').write('newer')\nsys.exit(3 if first else 0)\n"
    )
    codes, outs = Cluster(tmp_path, nothing_left, ("algo-1",), **FAILS_ALONE).end()
    assert codes == [0], outs
    assert outs["algo-1"].count("] unpack") == 2  # begins and ends, in the first attempt
    assert (tmp_path / "algo-1" / "input" / "data" / "train" / "x.txt").read_text() == "xyy"


def test_a_damaged_archive_of_one_host_is_the_root_cause_on_all(tmp_path, nothing_left):
    for host in HOSTS:
        tree(tmp_path, host, HOSTS, sagemaker_program="ddp", algorun_extract=["train"])
        source = archive(channel(tmp_path, host) / "part-7.tar.gz", member("x.txt", "x" * 10_000))
        if host == "algo-2":
            source.write_bytes(source.read_bytes()[:60])
    job = Cluster(tmp_path, nothing_left)
    codes, outs = job.end()
    assert codes == [64, 64], outs
    (text,) = job.failures()
    assert text.startswith(
        "setup: algo-2, exit 64: channel 'train', archive 'part-7.tar.gz': is not a usable tar file: "
    )


@pytest.mark.parametrize("wrong", ["absent.json", "damaged.json"])
def test_a_wrong_file_of_arguments_is_one_error_of_all_after_the_fetch(wrong, tmp_path, nothing_left):
    source = tarball(tmp_path / "code.tar.gz", {"train.py": "", "damaged.json": '["--lr",'})
    wishes = {"sagemaker_submit_directory": str(source), "algorun_args_file": wrong}
    for host in HOSTS:
        tree(tmp_path, host, HOSTS, sagemaker_program="train.py", **wishes)
    # A host that comes late is told by a leader that waits for it; after 10 s each would have its own text.
    job = Cluster(tmp_path, nothing_left, ALGORUN_LEAVE_S="60")
    codes, outs = job.end()
    assert codes == [64, 64], outs
    assert len(job.failures()) == 1, outs
    (text,) = job.failures()
    assert (
        f"exit 64: hyperparameter algorun_args_file '{wrong}'" in text or f"algorun_args_file: '{wrong}' is not" in text
    )


@pytest.mark.usefixtures("nothing_beside")
def test_a_stop_ends_an_extraction_at_once(tmp_path, nothing_left):
    tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program="ddp", algorun_extract=["train"])
    folder = channel(tmp_path, "algo-1")
    archive(folder / "a.tar", member("x.txt", "x"))
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # the extraction waits, as long as this process works in the folder
    try:
        job = Cluster(tmp_path, nothing_left, ("algo-1",))
        child = job.children["algo-1"]
        deadline = time.monotonic() + 20
        while not any("algorun.usercode.prepare" in words for words in commands(nothing_left)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        started = time.monotonic()
        child.send_signal(signal.SIGTERM)
        codes, outs = job.end()
    finally:
        os.close(handle)
    assert codes == [0], outs
    assert time.monotonic() - started < 5
    assert "stopped nnodes=1" in outs["algo-1"]


def test_a_newer_request_ends_the_job_with_64_and_the_fix(tmp_path, nothing_left):
    base = tree(tmp_path, "algo-1", ("algo-1",), sagemaker_program="ddp")
    environ = {"SAGEMAKER_BASE_DIR": str(base), "ALGORUN_REQUEST_FORMAT": "1000"}
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **environ)
    assert done.code == 64
    assert "fix: use an image of the client's version or newer" in (base / "output" / "failure").read_text()
