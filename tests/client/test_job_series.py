"""Jobs that follow each other, really run by the test server: until a task is done, and on other hosts."""

from __future__ import annotations

import json
import re
import time

import boto3
import pytest

from algorun_client.aws.job_state import read_training
from tests.client.test_chains import ON_THE_SERVER, laptop, server

__all__ = ["laptop", "server"]

# Each job finds one file more in its state, and ends in another way.
STAGES = """
import os, pathlib, signal, sys, time
state = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
stage, rank = len(list(state.glob("part-*"))), int(os.environ["RANK"])
print("stage", stage, "of", os.environ["SM_CURRENT_HOST"], flush=True)
if stage == 3:
    sys.exit(int(os.environ.get("LAST", "0")))
if rank == 0:
    (state / f"part-{stage}").write_text("x")
if stage == 2 and rank == 1:
    time.sleep(1.5)  # until the other host's file is in the bucket
    os.kill(os.getppid(), signal.SIGKILL)  # the launcher of this host: the host is lost
time.sleep(300)
"""
FILE = """
project = "PROJECT"
image = "algorun:test"
role = "arn:aws:iam::123456789012:role/Job"
price = { "ml.m5.large" = 3600, "ml.c5.xlarge" = 7200 }
[task.train]
run = ["stages.py"]
instance = "ml.m5.large"
hosts = 2
spot = true
max_run = "9s"
max_wait = "15s"
until_done = true
"""


def described(job: str):
    return read_training(boto3.client("sagemaker").describe_training_job(TrainingJobName=job))


def jobs_of(laptop) -> list[str]:
    return sorted(each["TrainingJobName"] for each in laptop.jobs())


def until(what, longest_s=60.0):
    deadline = time.monotonic() + longest_s
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def has(laptop, key: str) -> bool:
    found = boto3.client("s3").list_objects_v2(Bucket="b-ucket", Prefix=f"{laptop.project}/train/state/{key}")
    return bool(found.get("KeyCount"))


@pytest.mark.slow
@ON_THE_SERVER
def test_a_limit_a_spot_interruption_a_lost_host_and_a_killed_client(laptop, server, capfd):
    laptop.file(FILE.replace("PROJECT", laptop.project))
    (laptop.folder / "stages.py").write_text(STAGES)
    client = laptop.command("submit", "--json")
    second = until(lambda: has(laptop, "part-1") and jobs_of(laptop)[1])
    client.kill()
    assert client.code() == -9
    server.faults(interrupt=second, for_good=True)
    until(lambda: described(second).ended)
    assert laptop("submit") == 0
    said = capfd.readouterr()
    first, spot, lost, last = (described(job) for job in jobs_of(laptop))
    assert (first.status, first.detail, first.interruptions) == ("Stopped", "MaxRuntimeExceeded", 0)
    assert (spot.status, spot.detail, spot.interruptions) == ("Stopped", "MaxWaitTimeExceeded", 1)
    assert (lost.status, lost.failure[:38]) == ("Failed", "AlgorithmError: lost: algo-2, exit 66:")
    assert last.status == "Completed"
    assert "stage 3 of algo-1" in said.out
    assert (
        f"algorun: job {lost.job} lost a host (exit 66); it left 3 files of state (it found 2 files of state)"
        in said.err
    )
    (sums,) = re.findall(r"algorun: 4 jobs, billable (.*) on each host, cost (\d+\.\d\d)\n", said.err)
    billable_s = sum(each.times.billable_s or 0 for each in (first, spot, lost, last))
    assert float(sums[1]) == 2 * billable_s  # two hosts at one a second
    assert laptop("submit") == 0
    assert "done already by" in capfd.readouterr().err
    assert len(jobs_of(laptop)) == 4


@pytest.mark.slow
@ON_THE_SERVER
def test_a_program_that_begins_from_zero_and_one_that_fails(laptop, capfd):
    laptop.file(FILE.replace("PROJECT", laptop.project).replace("hosts = 2", "hosts = 1").replace('"9s"', '"4s"'))
    (laptop.folder / "stages.py").write_text(
        STAGES.replace('(state / f"part-{stage}")', '(state / "part-0")').replace("stage == 2", "stage == 1 and 0")
    )
    assert laptop("submit") == 74  # the second and the third job write what is there already
    assert len(jobs_of(laptop)) == 3
    assert "2 jobs in a row have left the state as they found it (1 file of state)" in capfd.readouterr().err
    (laptop.folder / "stages.py").write_text("import sys; sys.exit(66)\n")
    assert laptop("submit") == 66
    assert len(jobs_of(laptop)) == 4


LINE = ("--image", "algorun:test", "--role", "arn:aws:iam::123456789012:role/Job", "--task", "train")
SHOWS = 'echo "runs on $SM_HOSTS with $ALGORUN_SHOWN"'


# `make test` has the choice of hosts in one process: submit/series.
@pytest.mark.slow
@ON_THE_SERVER
def test_without_capacity_and_quota_the_next_hosts_are_taken(laptop, server, capfd):
    laptop.file('price = { "ml.c5.xlarge" = 2 }\n')
    types = ("--instance", "ml.m5.large,ml.m4.xlarge,ml.c5.xlargex2")
    line = ("submit", *LINE, *types, "--json", "--shell", SHOWS)
    server.faults(without_capacity="ml.m5.large", without_quota="ml.m4.xlarge")
    assert laptop(*line) == 0
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    told = [(each["tried"], each["next"], each["rate"]) for each in events if each["event"] == "next_hosts"]
    assert told == [("1 x ml.m5.large", "1 x ml.m4.xlarge", None), ("1 x ml.m4.xlarge", "2 x ml.c5.xlarge", 4.0)]
    lines = [each["text"] for each in events if each["event"] == "line" and "runs on" in each["text"]]
    assert len(lines) == 2
    assert all('runs on ["algo-1","algo-2"]' in line.replace(", ", ",") for line in lines), lines
    assert [described(job).hosts.groups for job in jobs_of(laptop)] == [(("ml.m5.large", 1),), (("ml.c5.xlarge", 2),)]
    server.faults()
    assert laptop(*line) == 0  # done by the third of them
    assert '"event": "done"' in capfd.readouterr().out
    server.faults(without_capacity="ml.m5.large", without_quota="ml.m4.xlarge,ml.c5.xlarge")
    assert laptop(*line, "--force") == 72
    assert "no room for any of the 2 kinds of hosts" in capfd.readouterr().err


@pytest.mark.slow
@ON_THE_SERVER
def test_ddp_on_other_hosts_has_the_same_global_batch(laptop, server, capfd):
    laptop.file("")
    small = ("--width", "16", "--depth", "1", "--epochs", "1", "--batch-size", "4", "--image-size", "8")
    words = ("--slots", "2", "--max-run", "5m", "ddp", "--model", "convnet", *small)
    server.faults(without_capacity="ml.m4.xlarge")
    found = []
    for types in ("ml.m5.largex2,ml.c5.xlargex1", "ml.m4.xlargex2,ml.c5.xlargex1"):
        assert laptop("submit", *LINE, "--force", "--clean-state", "--instance", types, *words) == 0
        found += re.findall(r"global batch: .*", capfd.readouterr().out)
    assert found == [
        "global batch: 16 = 4 per rank x 4 ranks x 1 passes",
        "global batch: 16 = 4 per rank x 2 ranks x 2 passes",
    ]
