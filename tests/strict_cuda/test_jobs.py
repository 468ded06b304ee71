"""The bundled jobs run as cuda:0 without a GPU: no tensor is on the wrong device, and no step waits for it unasked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """The folder of all jobs' and mutations' results: one process has loaded torch, and forks their ranks."""
    need_compiler()
    out = tmp_path_factory.mktemp("strict")
    here = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in here]  # some wait for make test-all
    environ = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": CACHE}
    command = [sys.executable, "-m", "tests.strict_cuda.driver", str(out), *names]
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    assert run.returncode == 0, run.stdout + run.stderr
    return out


def results(folder):
    """Each rank's result, and its output."""
    files = sorted(folder.glob("rank*.json"))
    return [(json.loads(file.read_text()), file.with_suffix(".log").read_text()) for file in files]


# What the other layouts have is in these jobs too.
@pytest.mark.slow(
    but=["images", "images-bf16", "image-folder", "llama", "lora", "shard", "pipeline", "pipeline-shard", "smp-bf16"]
)
@pytest.mark.parametrize("name", JOBS)
def test_a_job_trains_as_cuda_and_waits_only_where_the_table_says(ran, name):
    job = JOBS[name]
    found = results(ran / name)
    assert len(found) == job.ranks
    for result, text in found:
        assert result["code"] == 0, text
        assert unexpected(job, result) == []
        assert result["steps"] > FIRST_STEPS or job.program == SMP, "no step was counted"
    text = found[0][1]
    assert "on cuda" in text
    assert ("resumed: " in text) == bool(job.again)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_fault_that_a_gpu_would_show_is_caught(ran, name):
    mutation = MUTATIONS[name]
    ((result, text),) = results(ran / name)
    wrong = unexpected(mutation.job, result)
    assert mutation.expected in (" ".join(wrong) if result["code"] == 0 else text)
    assert result["code"] or wrong
