"""Trackers of jobs that the test server runs: one run over a spot interruption and a later execution of the task."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest

from tests.client.test_chains import ON_THE_SERVER, laptop, server
from tests.client.test_job_series import FILE, described, has, jobs_of, until

__all__ = ["laptop", "server"]

# Each start finds one file more in its state and prints one number more. The first one never ends.
PROGRAM = """
import os, pathlib, time
state = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
step = len(list(state.glob("part-*"))) + 1
print(f"step {step} loss={step / 2}", flush=True)
time.sleep(3)  # until the trackers have looked
(state / f"part-{step}").write_text("x")
time.sleep(300 if step == 1 else 0)
"""
METRICS = json.dumps({"loss": "step (?P<step>[0-9]+) loss=([0-9.]+)"})


def state_of(project: str, folder: Path) -> Path:
    """The state of the task, as a folder."""
    s3 = boto3.client("s3")
    prefix = f"{project}/train/state/"
    for each in s3.list_objects_v2(Bucket="b-ucket", Prefix=prefix)["Contents"]:
        file = folder / each["Key"].removeprefix(prefix)
        file.parent.mkdir(parents=True, exist_ok=True)
        s3.download_file("b-ucket", each["Key"], str(file))
    return folder


@pytest.mark.slow
@ON_THE_SERVER
def test_it_stays_one_run_over_an_interruption_and_a_later_execution(laptop, server, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    text = FILE.replace("PROJECT", laptop.project).replace("until_done = true\n", "")
    text = text.replace("hosts = 2", "hosts = 1").replace('"9s"', '"90s"').replace('"15s"', '"120s"')
    laptop.file(f"{text}[task.train.env]\nALGORUN_TRACKERS = 'tensorboard'\nALGORUN_METRICS = '{METRICS}'\n")
    (laptop.folder / "stages.py").write_text(PROGRAM)
    client = laptop.command("submit", "--json")
    until(lambda: has(laptop, "part-1"))
    (job,) = jobs_of(laptop)
    server.faults(interrupt=job)
    assert client.code() == 0, client.said.read_text()
    assert described(job).interruptions == 1
    first = json.loads((state_of(laptop.project, tmp_path / "first") / ".algorun-run.json").read_text())
    assert laptop("submit", "--force") == 0
    later = state_of(laptop.project, tmp_path / "later")
    assert json.loads((later / ".algorun-run.json").read_text())["id"] == first["id"]
    (run,) = (later / "tensorboard").iterdir()
    events = EventAccumulator(str(run)).Reload()
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [(1, 0.5), (2, 1.0), (3, 1.5)]
