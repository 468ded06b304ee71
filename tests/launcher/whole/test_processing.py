"""Processing jobs: hosts from /opt/ml/config, ranks as in training or none at all, data sharded by host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import FAILS_ALONE, clean_environ
from tests.launcher.common.test_archives import archive, member
from tests.launcher.whole.test_usercode import tarball
from tests.ports import own_port

HOSTS = ("algo-1", "algo-2", "algo-3")
COUNTS = """
import json, os, pathlib, sys
base = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"]) / "processing"
names = sorted(path.name for path in (base / "input").iterdir())
alone = not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(os.environ)
out = {"names": names, "alone": alone, "rank": os.environ.get("RANK"), "host": os.environ["SM_CURRENT_HOST"],
       "index": os.environ["SM_CURRENT_HOST_RANK"], "hosts": os.environ["SM_HOST_COUNT"]}
(base / "output" / "counts.json").write_text(json.dumps(out))
if "fail" in sys.argv and out["host"] == "algo-3":
    raise ValueError("a shard that cannot be read")
"""


def run(tmp_path: Path, marker: str, *words: str, described: object = None, **environ: str) -> list[int]:
    """The hosts of a Processing job, as `entrypoint=["algorun", "run", ..]` starts them; each has its shard of the data."""
    (tmp_path / "count.py").write_text(COUNTS)
    port = str(own_port())
    children = []
    for index, host in enumerate(HOSTS):
        base = tmp_path / host
        for folder in ("config", "processing/input", "processing/output"):
            (base / folder).mkdir(parents=True, exist_ok=True)
        resources = {"current_host": host, "hosts": HOSTS, "network_interface_name": "lo"}
        (base / "config" / "resourceconfig.json").write_text(json.dumps(resources))
        config = described or {"ProcessingJobArn": "arn:aws:sagemaker:..:x"}
        (base / "config" / "processingjobconfig.json").write_text(json.dumps(config))
        for number in range(index, 7, len(HOSTS)):  # S3DataDistributionType=ShardedByS3Key
            (base / "processing" / "input" / f"part-{number}").touch()
        addresses = ",".join(f"{name}=127.0.0.{place}" for place, name in enumerate(HOSTS, 1))
        env = clean_environ(
            ALGORUN_TEST=marker,
            ALGORUN_ADDRESSES=addresses,
            ALGORUN_CONTROL_PORT=port,
            SAGEMAKER_BASE_DIR=str(base),
            **environ,
        )
        argv = [sys.executable, "-I", "-m", "algorun", "run", *words]
        children.append(
            subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
    return [child.wait(60) for child in children]


def counts(tmp_path: Path) -> list[dict]:
    return [json.loads((tmp_path / host / "processing" / "output" / "counts.json").read_text()) for host in HOSTS]


def test_each_host_of_a_share_nothing_job_works_on_its_own_shard(tmp_path, nothing_left):
    assert run(tmp_path, nothing_left, "--share-nothing", "count.py") == [0, 0, 0]
    found = counts(tmp_path)
    assert sorted(name for each in found for name in each["names"]) == [f"part-{number}" for number in range(7)]
    assert all(each["alone"] and each["hosts"] == "3" for each in found)
    assert [(each["host"], each["index"]) for each in found] == [("algo-1", "0"), ("algo-2", "1"), ("algo-3", "2")]


def test_ranks_are_derived_as_in_training(tmp_path, nothing_left):
    assert run(tmp_path, nothing_left, "count.py") == [0, 0, 0]
    assert [each["rank"] for each in counts(tmp_path)] == ["0", "1", "2"]


def test_a_failure_is_the_exit_message_of_every_host(tmp_path, nothing_left):
    assert run(tmp_path, nothing_left, "--share-nothing", "count.py", "fail", **FAILS_ALONE) == [1, 1, 1]
    texts = {(tmp_path / host / "output" / "message").read_text() for host in HOSTS}
    assert len(texts) == 1
    text = texts.pop()
    assert text.startswith("exception: rank 2 on algo-3, exit 1, attempt 1: ValueError: a shard that cannot be read")
    assert text == (tmp_path / "algo-1" / "output" / "failure").read_text()


def test_a_command_line_for_simple_sagemaker_runs_as_it_is_written(tmp_path, nothing_left):
    """The variables and folders that it names are there on every host, and the data is unpacked."""
    inputs = [{"InputName": "train", "S3Input": {"LocalPath": "/opt/ml/processing/input", "S3InputMode": "File"}}]
    for host in HOSTS:
        (tmp_path / host / "processing" / "input").mkdir(parents=True)
        archive(tmp_path / host / "processing" / "input" / "a.tar.gz", member("images/x.jpg", host))
    command = (
        "CODE_DIR=`pwd` && cd $SSM_INSTANCE_STATE && "
        "cat $SM_CHANNEL_TRAIN/images/x.jpg > seen && echo $SSM_NUM_NODES $SSM_HOST_RANK $CODE_DIR >> seen && "
        "cp seen $SSM_OUTPUT/"
    )
    words = ("--share-nothing", "/bin/bash", "-c", command)
    assert (
        run(tmp_path, nothing_left, *words, described={"ProcessingInputs": inputs}, ALGORUN_EXTRACT='["train"]')
        == [0] * 3
    )
    for rank, host in enumerate(HOSTS):
        folder = tmp_path / host / "processing"
        assert os.listdir(folder / "state") == [host]
        assert (folder / "state" / host / "seen").read_text() == f"{host}3 {rank} {tmp_path}\n"
        assert (folder / "output" / "seen").is_file()


def test_code_and_arguments_come_from_an_archive(tmp_path, nothing_left):
    """As algorun's client starts a Processing job: the code is an input, long arguments lie in it."""
    program = "import json, os, sys\nprint(json.dumps([len(sys.argv[2]), os.getcwd()]), file=open('seen', 'w'))\n"
    args = json.dumps(["--text", "x" * 3000])
    for host in HOSTS:
        folder = tmp_path / host / "processing" / "input" / "code"
        folder.mkdir(parents=True)
        tarball(folder / "code.tar.gz", {"main.py": program, ".algorun/args.json": args})
    archive_path = "/opt/ml/processing/input/code/code.tar.gz"
    words = (
        "--share-nothing",
        "--code",
        archive_path,
        "--args-file",
        ".algorun/args.json",
        "--cwd",
        "state",
        "main.py",
    )
    assert run(tmp_path, nothing_left, *words) == [0, 0, 0]
    for host in HOSTS:
        state = tmp_path / host / "processing" / "state" / host
        assert json.loads((state / "seen").read_text()) == [3000, str(state)]
        assert (tmp_path / host / "code" / "main.py").is_file()
