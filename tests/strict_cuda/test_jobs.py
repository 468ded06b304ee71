"""The bundled jobs run as cuda:0 without a GPU: no tensor is on the wrong device, and no step waits for it unasked."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .driver import FIRST_RUN
from .jobs import FIRST_STEPS, JOBS, SMP, unexpected
from .mutations import MUTATIONS

LIMIT_S = 1200  # with the compilation, on a busy machine
NEED = "ALGORUN_TESTS_NEED_GXX"
ROOT = Path(__file__).resolve().parents[2]

CACHE = str(ROOT / ".build" / "cache")  # of the compiled device: once per torch and source


def need_compiler() -> None:
    """Skips the test where the device cannot be compiled; with ALGORUN_TESTS_NEED_GXX=1, as in CI, that is a failure."""
    if shutil.which("g++") is None:
        if os.environ.get(NEED) == "1":
            pytest.fail(f"{NEED}=1, and there is no g++ on PATH")
        pytest.skip("the device is compiled on this machine: apt-get install g++")


class Driver:
    """One process that has loaded torch and the device, and forks the ranks of the jobs that it is asked for."""

    def __init__(self, out: Path) -> None:
        environ = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": CACHE}
        self._out, self._log = out, out / "driver.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.strict_cuda.driver", str(out)],
                cwd=ROOT,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def run(self, name: str) -> Path:
        """The folder of the results of a job or a mutation."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(f"{name}\n".encode())
        asked.flush()
        assert select.select([answers], [], [], LIMIT_S)[0], f"{name} has not ended within {LIMIT_S} s"
        answer = answers.readline().decode().strip()
        assert answer == name, self._log.read_text()
        return self._out / name

    def close(self) -> None:
        """Ends it, and whatever rank is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    need_compiler()
    one = Driver(tmp_path_factory.mktemp("strict"))
    yield one
    one.close()


def results(folder):
    """Each rank's result, and its output."""
    files = sorted(folder.glob("rank*.json"))
    return [(json.loads(file.read_text()), file.with_suffix(".log").read_text()) for file in files]


# What the other layouts have is in these jobs too.
@pytest.mark.slow(but=["images-bf16", "image-folder", "llama", "lora", "pipeline-shard", "smp-bf16"])
@pytest.mark.parametrize("name", JOBS)
def test_a_job_trains_as_cuda_and_waits_only_where_the_table_says(driver, name):
    job = JOBS[name]
    folder = driver.run(name)
    found = results(folder)
    assert len(found) == job.ranks
    for result, text in found:
        assert result["code"] == 0, text
        assert unexpected(job, result) == []
        assert result["steps"] > FIRST_STEPS or job.program == SMP, "no step was counted"
        assert result["saves"] or job.program == SMP, "no save was counted"
    text = found[0][1]
    first = sorted(folder.glob(f"rank*.{FIRST_RUN}"))
    assert len(first) == (job.ranks if job.again else 0)
    for file in first:
        assert unexpected(job, json.loads(file.read_text())) == []
    assert "on cuda" in text
    assert ("resumed: " in text) == bool(job.again)


@pytest.mark.slow(
    but=[
        "copy_from_pageable_memory",
        "pinned_copy_that_blocks",
        "hidden_item",
        "mask_on_the_cpu",
        "evaluation_read_in_each_batch",
    ]
)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_fault_that_a_gpu_would_show_is_caught(driver, name):
    mutation = MUTATIONS[name]
    found = results(driver.run(name))
    assert len(found) == mutation.job.ranks
    for result, text in found:
        assert mutation.expected in (text if result["code"] else " ".join(unexpected(mutation.job, result)))
