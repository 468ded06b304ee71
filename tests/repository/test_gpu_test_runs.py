"""`make test PART=gpu` from its start to its page, on the CPU with models that are as small as they get."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT, clean_environ
from tests.gpu import interpreter, machine

ONLY = "doctor,plan,pipeline,graph,index,step,memory"  # CI runs all of them


def start(folder, only: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.gpu", "--cpu", "--page", folder / "gpu.md", "--keep", folder / "kept.json"]
    out = subprocess.PIPE
    return subprocess.Popen(
        [*argv, "--only", only], cwd=ROOT, env=clean_environ(), stdout=out, stderr=subprocess.STDOUT, text=True
    )


# CI runs all checks of this part on the CPU.
@pytest.mark.slow
def test_the_harness_runs_jobs_measures_and_writes_its_page(tmp_path):
    harness = start(tmp_path, ONLY)
    said = harness.communicate(timeout=240)[0]
    assert harness.returncode == 0, said
    rows = {row["name"]: row for row in json.loads((tmp_path / "kept.json").read_text())["rows"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "doctor": "passed",
        "plan": "skipped",
        "pipeline": "passed",
        "graph": "skipped",
        "index": "passed",
        "step": "passed",
        "memory": "passed",
    }
    assert rows["graph"]["note"] == "needs a GPU; this machine has none"
    assert "IndexError: index 11 is out of bounds" in rows["index"]["note"]
    figures = {figure["name"]: figure["value"] for name in ("step", "memory") for figure in rows[name]["figures"]}
    assert float(figures["ddp's throughput over the bare loop's"]) > 0
    assert float(figures["memory, measured over planned"]) > 0.5
    text = (tmp_path / "gpu.md").read_text()
    assert "**Measured on a CPU. These figures say nothing about a GPU.**" in text
    assert f"| CPU: {figures['ddp, images/s']} |" in text
    assert "| ddp, MFU | CPU: - | no GPU; the peak of a CPU is not in launcher/algorun/machine/gpu_peaks.py |" in text
    assert said.endswith(f"s; the tables are in {tmp_path / 'gpu.md'}\n")


HIDDEN = """
import importlib.metadata, runpy
own = importlib.metadata.version
def version(name):
    if name == "transformers":
        raise importlib.metadata.PackageNotFoundError(name)
    return own(name)
importlib.metadata.version = version
runpy.run_module("tests.gpu.programs.look", run_name="__main__")
"""


@pytest.mark.slow  # it asks torch
def test_the_version_of_transformers_is_that_of_the_python_that_runs_the_checks(tmp_path):
    python = interpreter.make(tmp_path / "python")
    seen = machine.look(python, clean_environ(), cpu=True)
    assert seen.transformers == importlib.metadata.version("transformers")
    assert f", transformers {seen.transformers}, Python " in str(seen)
    done = subprocess.run([sys.executable, "-c", HIDDEN], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["transformers"] == "absent"


def test_a_stopped_harness_takes_its_job_along(tmp_path):
    harness = start(tmp_path, "stop")
    deadline = time.monotonic() + 180  # it loads torch before, which takes long on a busy machine
    while not (pids := _launchers_of(harness.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    harness.send_signal(signal.SIGTERM)
    said = harness.communicate(timeout=120)[0]
    assert harness.returncode == 128 + signal.SIGTERM, said
    assert pids
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if os.path.exists(f"/proc/{pid}")]:  # ended, until somebody collects it
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def _launchers_of(pid: int) -> list[str]:
    """The children that are `algorun run`."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = file.read().split()
    found = []
    for child in children:
        try:
            with open(f"/proc/{child}/cmdline") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if "algorun" in words:
            found.append(child)
    return found
