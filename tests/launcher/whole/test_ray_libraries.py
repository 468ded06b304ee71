"""Ray Data, Ray Train and the example for users under the engine `ray`. `make test PART=ray`"""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT, needs_ray

from .running import PROGRAMS, simulate
from .test_ray import LEAN, failures  # noqa: F401: a fixture

pytestmark = [needs_ray, pytest.mark.slow]


def run(mode, tmp_path, marker):
    """Two CPUs on each host: Ray Train's controller takes one."""
    program = PROGRAMS / "ray_libraries.py"
    return simulate("ray", program, mode, folder=tmp_path, marker=marker, layout="2x2", **LEAN)


def test_ray_data_maps_on_all_hosts(tmp_path, nothing_left):
    job = run("data", tmp_path, nothing_left)
    assert job.code == 0, job.text
    assert "sum 999000" in job.out


def test_torch_trainer_trains_with_a_worker_on_each_host(tmp_path, nothing_left):
    job = run("train", tmp_path, nothing_left)
    assert job.code == 0, job.text
    for number, host in ((0, 1), (1, 2)):
        assert re.search(rf"worker \d 2 algo-{host} gloo", job.out), number
    weights = re.findall(r"weights of (\d): (\[.*?\])", job.out)
    assert {rank for rank, _ in weights} == {"0", "1"}
    assert len({each for _, each in weights}) == 1, "gradients are those of both workers"


def test_a_worker_of_torch_trainer_that_raises_is_the_root_cause(tmp_path, nothing_left):
    job = run("train_fails", tmp_path, nothing_left)
    assert job.code == 1, job.text
    (text,) = failures(tmp_path)
    says = "exception: rank 0 on algo-1, exit 1, attempt 1: ValueError: bad batch 2 (worker 1 of Ray Train) (at "
    assert text.startswith(says)
    assert "ray_libraries.py" in text


def test_the_example_trains_on_parts_that_tasks_made(tmp_path, nothing_left):
    import torch

    example = ROOT / "examples" / "ray" / "driver.py"
    job = simulate("ray", example, folder=tmp_path, marker=nothing_left, layout="2x2", timeout=240, **LEAN)
    assert job.code == 0, job.text
    assert "32 parts made on algo-1, algo-2" in job.out
    assert all(re.search(rf"worker [01] of 2 on {host}", job.out) for host in ("algo-1", "algo-2"))
    (path,) = tmp_path.glob("algorun-simulate/*/model/model.pt")
    weights = torch.load(path, weights_only=True)
    assert weights["weight"].flatten().tolist() == pytest.approx([1.0] * 4, abs=0.01)
