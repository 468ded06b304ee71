"""Jobs on this machine, with real launchers and ranks on two simulated hosts."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from algorun_client.local.job_folder import LocalSettings
from tests.client.local.local_jobs import (
    BUCKET,
    LIMIT_S,
    PROCESSING,
    Local,
    channel,
    pid_of_runner,
    processing,
    training,
)

# Each rank writes what it found; exit 3 on algo-2 where a hyperparameter says so.
PROGRAM = """
import json, os, pathlib, sys
base, host = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"]), os.environ["SM_CURRENT_HOST"]
found = {folder.name: sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
         for folder in (base / "input" / "data").iterdir()}
print("found " + json.dumps(found), flush=True)
(base / "model" / f"{host}.txt").write_text(os.environ["RANK"])
(base / "output" / "data" / f"{host}.json").write_text(json.dumps({"home": "SECRET" in os.environ, **found}))
state = base / "checkpoints"
(state / f"{host}.txt").write_text(str(len(list(state.iterdir()))))
if "--fail" in sys.argv and host == "algo-2":
    (state / "old.txt").unlink(missing_ok=True)
    sys.exit(3)
"""
STATE = {"CheckpointConfig": {"S3Uri": f"{BUCKET}/state"}}


@pytest.fixture
def local(tmp_path):
    return Local(tmp_path / "root")


def test_a_job_of_two_hosts_leaves_lines_archives_and_checkpoints(local, nothing_left, monkeypatch):
    monkeypatch.setenv("SECRET", "of the user's shell")
    for number in range(5):
        local.store.put(f"{BUCKET}/data/part-{number}", b"x")
    local.store.put(f"{BUCKET}/data/deep/", b"")
    local.store.put(f"{BUCKET}/neighbour-of-data/x", b"x")
    local.store.put(f"{BUCKET}/state/old.txt", b"0")
    request = training(
        local.store, "two-hosts", PROGRAM, marker=nothing_left, **STATE,
        InputDataConfig=[
            channel("all", f"{BUCKET}/data"),
            channel("shards", f"{BUCKET}/data/", S3DataDistributionType="ShardedByS3Key"),
            {**channel("one", f"{BUCKET}/data/part-3"), "InputMode": "FastFile"},
        ],
    )  # fmt: skip
    arn = local.platform.create_training_job(**request)["TrainingJobArn"]
    answer = local.ended("two-hosts")
    assert answer["TrainingJobStatus"] == answer["SecondaryStatus"] == "Completed", answer
    assert answer["TrainingJobArn"] == arn
    assert local.statuses("two-hosts") == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert all(each["EndTime"] >= each["StartTime"] for each in answer["SecondaryStatusTransitions"])
    assert answer["BillableTimeInSeconds"] == answer["TrainingTimeInSeconds"]
    model = answer["ModelArtifacts"]["S3ModelArtifacts"]
    assert model == f"{BUCKET}/out/two-hosts/output/model.tar.gz"
    assert local.members(model) == {"algo-1.txt": b"0", "algo-2.txt": b"1"}
    output = local.members(f"{BUCKET}/out/two-hosts/output/output.tar.gz")
    parts = [f"part-{number}" for number in range(5)]
    one, two = json.loads(output["algo-1.json"]), json.loads(output["algo-2.json"])
    assert (one["all"], one["one"], one["home"]) == (parts, ["part-3"], False)
    assert (one["shards"], two["shards"]) == (parts[0::2], parts[1::2])
    assert local.keys(f"{BUCKET}/state/") == ["algo-1.txt", "algo-2.txt", "old.txt"]
    assert local.store.get(f"{BUCKET}/state/algo-2.txt") == b"1"  # restored: old.txt
    lines = [line for line in local.lines("two-hosts") if "found" in line]
    assert [line.partition(": ")[0] for line in lines] == ["algo-1", "algo-2"]
    assert not (local.root / "jobs/training/two-hosts/hosts").exists()
    assert (local.root / "jobs/training/two-hosts/runner.log").read_text() == ""


def test_a_failure_on_the_second_host_is_the_job_s_reason(local, nothing_left):
    local.store.put(f"{BUCKET}/state/old.txt", b"0")
    request = training(
        local.store, "fails", PROGRAM, marker=nothing_left, HyperParameters={"algorun_args": '["--fail"]'}, **STATE
    )
    local.platform.create_training_job(**request)
    answer = local.ended("fails")
    assert answer["TrainingJobStatus"] == "Failed"
    assert answer["FailureReason"].startswith("AlgorithmError: exit: rank 1 on algo-2, exit 3")
    assert answer["FailureReason"].endswith(", exit code: 3")
    assert len(answer["FailureReason"]) <= 1024
    assert "failure-full.txt" in local.members(f"{BUCKET}/out/fails/output/output.tar.gz")
    assert local.store.get(f"{BUCKET}/state/old.txt") == b"0"  # the other host has it still


STOPS = """
import os, pathlib, signal, sys, time
base = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"])
step = base / "checkpoints" / (os.environ["SM_CURRENT_HOST"] + ".step")
before = step.read_text() if step.exists() else "nothing"
def stop(*_):
    step.write_text("saved at the stop")
    os.write(1, b"saved\\n")  # print would fail where the signal comes while one is under way
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
step.write_text("begun")
print("began with " + before, flush=True)
time.sleep(120 if before != "saved at the stop" else 0)
"""


def test_a_stop_lets_every_host_save_and_the_next_job_finds_it(local, nothing_left):
    local.platform.create_training_job(**training(local.store, "stops", STOPS, marker=nothing_left, **STATE))
    local.until("stops", "began with nothing", 2)
    deadline = time.monotonic() + LIMIT_S
    while local.keys(f"{BUCKET}/state/") != ["algo-1.step", "algo-2.step"]:  # synced while the job runs
        assert time.monotonic() < deadline
        time.sleep(0.05)
    local.platform.stop_training_job(TrainingJobName="stops")
    assert local.describe("stops")["TrainingJobStatus"] in ("Stopping", "Stopped")
    answer = local.ended("stops")
    assert (answer["TrainingJobStatus"], answer["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert local.statuses("stops")[-3:] == ["Stopping", "Uploading", "Stopped"]
    assert local.store.get(f"{BUCKET}/state/algo-2.step") == b"saved at the stop"
    local.platform.create_training_job(**training(local.store, "next", STOPS, marker=nothing_left, **STATE))
    assert local.ended("next")["TrainingJobStatus"] == "Completed"
    assert sum("began with saved at the stop" in line for line in local.lines("next")) == 2


def test_an_interrupted_spot_job_starts_again_with_its_checkpoints(local, nothing_left):
    spot = {
        "EnableManagedSpotTraining": True,
        "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 90},
    }
    local.platform.create_training_job(**training(local.store, "spot", STOPS, marker=nothing_left, **STATE, **spot))
    local.until("spot", "began with nothing", 2)
    local.platform.interrupt("spot")
    answer = local.ended("spot")
    assert answer["TrainingJobStatus"] == "Completed"
    assert local.statuses("spot") == [
        "Starting", "Downloading", "Training", "Interrupted",
        "Starting", "Downloading", "Training", "Uploading", "Completed",
    ]  # fmt: skip
    assert answer["BillableTimeInSeconds"] <= answer["TrainingTimeInSeconds"]
    lines = local.lines("spot")
    assert sum("began with saved at the stop" in line for line in lines) == 2
    streams = local.logs.describe_log_streams(logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix="spot/")
    assert len(streams["logStreams"]) == 4


def test_a_job_ends_at_its_longest_runtime(local, nothing_left):
    limit = {"StoppingCondition": {"MaxRuntimeInSeconds": 1}}
    local.platform.create_training_job(**training(local.store, "long", STOPS, hosts=1, marker=nothing_left, **limit))
    answer = local.ended("long")
    assert (answer["TrainingJobStatus"], answer["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")


def test_a_killed_runner_is_a_failed_job_and_takes_its_hosts_along(local, nothing_left):
    local.platform.create_training_job(**training(local.store, "killed", STOPS, marker=nothing_left))
    local.until("killed", "began with nothing", 2)
    os.kill(pid_of_runner(local, "killed"), signal.SIGKILL)
    answer = local.ended("killed")
    assert answer["TrainingJobStatus"] == "Failed"
    assert answer["FailureReason"].startswith("InternalServerError: the process that ran this job has ended")


COUNTS = """
import os, pathlib
base = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"])
names = sorted(path.name for path in (base / "processing/input/data").iterdir())
(base / "processing/output" / (os.environ["SM_CURRENT_HOST"] + ".txt")).write_text(" ".join(names))
"""


def test_a_processing_job_gets_shards_and_leaves_its_output(local, nothing_left, tmp_path):
    (tmp_path / "count.py").write_text(COUNTS)
    for number in range(3):
        local.store.put(f"{BUCKET}/data/{number}", b"x")
    s3_input = {
        "S3Uri": f"{BUCKET}/data/", "LocalPath": "/opt/ml/processing/input/data", "S3DataType": "S3Prefix",
        "S3InputMode": "File", "S3DataDistributionType": "ShardedByS3Key",
    }  # fmt: skip
    output = {"S3Uri": f"{BUCKET}/counts", "LocalPath": "/opt/ml/processing/output", "S3UploadMode": "EndOfJob"}
    request = processing(
        "counts", "algorun", "run", "--share-nothing", str(tmp_path / "count.py"), hosts=2, marker=nothing_left,
        ProcessingInputs=[{"InputName": "data", "S3Input": s3_input}],
        ProcessingOutputConfig={"Outputs": [{"OutputName": "output", "S3Output": output}]},
    )  # fmt: skip
    local.platform.create_processing_job(**request)
    answer = local.ended("counts", processing=True)
    assert answer["ProcessingJobStatus"] == "Completed", local.lines("counts", PROCESSING)
    assert local.store.get(f"{BUCKET}/counts/algo-1.txt") == b"0 2"
    assert local.store.get(f"{BUCKET}/counts/algo-2.txt") == b"1"


def test_the_message_and_code_of_a_failed_processing_job(local, nothing_left):
    script = 'echo "no data" > "$SAGEMAKER_BASE_DIR/output/message"; echo one; printf two; exit 5'
    local.platform.create_processing_job(**processing("shell", "bash", "-c", script, marker=nothing_left))
    answer = local.ended("shell", processing=True)
    assert answer["ProcessingJobStatus"] == "Failed"
    assert (answer["FailureReason"], answer["ExitMessage"]) == ("AlgorithmError: , exit code: 5", "no data")
    assert local.lines("shell", PROCESSING) == ["algo-1: one", "algo-1: two"]


def test_a_program_that_does_not_exist(local):
    local.platform.create_processing_job(**processing("none", "/no/such/program"))
    assert local.ended("none", processing=True)["FailureReason"] == "AlgorithmError: , exit code: 127"
    assert "No such file" in local.lines("none", PROCESSING)[0]


def test_a_host_that_ignores_a_stop_is_killed(tmp_path, nothing_left):
    local = Local(tmp_path / "root", LocalSettings(stop_grace_s=0.3))
    script = "trap '' TERM; echo ready; while true; do sleep 0.1; done"
    local.platform.create_processing_job(**processing("deaf", "bash", "-c", script, marker=nothing_left))
    local.until("deaf", "ready", group=PROCESSING)
    local.platform.stop_processing_job(ProcessingJobName="deaf")
    assert local.ended("deaf", processing=True)["ProcessingJobStatus"] == "Stopped"


def test_a_job_whose_client_died_before_its_runner_started_is_run_by_whoever_looks(local, nothing_left, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(local.platform, "_run", lambda folder: None)
        local.platform.create_processing_job(**processing("orphan", "bash", "-c", "echo ran", marker=nothing_left))
    other = Local(local.root)
    assert other.ended("orphan", processing=True)["ProcessingJobStatus"] == "Completed"
    assert other.lines("orphan", PROCESSING) == ["algo-1: ran"]


def test_many_who_look_start_one_runner(local, nothing_left, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(local.platform, "_run", lambda folder: None)
        local.platform.create_processing_job(**processing("once", "bash", "-c", "echo ran", marker=nothing_left))
    others = [Local(local.root) for _ in range(4)]
    for other in others:
        other.platform.describe_processing_job(ProcessingJobName="once")
    assert {other.ended("once", processing=True)["ProcessingJobStatus"] for other in others} == {"Completed"}
    assert local.lines("once", PROCESSING) == ["algo-1: ran"]


def test_a_host_that_outlives_the_failed_one_does_not_hide_its_code(tmp_path, nothing_left):
    local = Local(tmp_path / "root", LocalSettings(linger_s=0.2))
    script = "if grep -q 'current_host\": \"algo-2' $SAGEMAKER_BASE_DIR/config/resourceconfig.json; then exit 4; fi; sleep 60"
    local.platform.create_processing_job(**processing("one", "bash", "-c", script, hosts=2, marker=nothing_left))
    assert local.ended("one", processing=True)["FailureReason"] == "AlgorithmError: , exit code: 4"
