"""ALGORUN_CUDA_ON_CPU=1: what is written for a GPU runs on a machine without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import algorun, clean_environ

PROGRAMS = Path(__file__).parent / "programs"
SAYS = "ALGORUN_CUDA_ON_CPU=1: there is no GPU; devices named cuda are the CPU"


def python(*words: str, **environ: str) -> subprocess.CompletedProcess:
    environ = clean_environ(**environ)
    return subprocess.run(
        [sys.executable, *words], env=environ, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def found() -> dict:
    done = python(str(PROGRAMS / "cuda_on_cpu.py"), ALGORUN_CUDA_ON_CPU="1")
    assert done.returncode == 0, done.stderr
    said, results = done.stdout.strip().splitlines()
    assert said == SAYS
    return json.loads(results)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("factories", ["cpu"]),
        ("tensors", ["cpu"]),
        ("modules", ["cpu"]),
        ("default_device", ["cpu"]),
        ("calls", [2, 1, False, 0]),
        ("random_states", [True] * 4),
        ("loads", [["cpu"], True]),
        ("recomputed", [[18.0, 18.0]] * 2),
        ("workers", 6),
        ("compiled", [3.0]),
    ],
)
def test_devices_named_cuda_are_the_cpu(case, expected, found):
    assert found[case] == expected


@pytest.mark.parametrize("environ", [{}, {"ALGORUN_CUDA_ON_CPU": "0"}])
def test_without_the_switch_the_error_is_torchs_own(environ):
    done = python(str(PROGRAMS / "cuda_on_cpu.py"), "modules", **environ)
    assert done.returncode == 1
    assert "in modules" in done.stderr
    assert "_lazy_init" in done.stderr
    assert SAYS not in done.stdout


def test_without_the_switch_nothing_is_imported():
    code = "import smdistributed.dataparallel.torch, sys; print('smdistributed.cuda_on_cpu' in sys.modules)"
    assert python("-c", code).stdout.split() == ["False"]


def test_a_value_that_is_none_is_refused():
    done = python("-c", "import smdistributed.dataparallel.torch", ALGORUN_CUDA_ON_CPU="yes")
    assert done.stderr.strip().endswith(
        "UserError: ALGORUN_CUDA_ON_CPU: 'yes'; allowed: 0, 1 or script; fix: ALGORUN_CUDA_ON_CPU=1"
    )


def test_where_there_is_a_gpu_nothing_changes():
    """A stand-in for the GPU: that torch says there is one."""
    code = (
        "import torch; torch.cuda.is_available = lambda: True; kept = torch.cuda.synchronize\n"
        "from smdistributed import cuda_on_cpu; cuda_on_cpu.install()\n"
        "print(torch.cuda.synchronize is kept, torch._C._len_torch_function_stack())"
    )
    assert python("-c", code).stdout.strip() == "True 0"


def test_data_parallel_training_with_device_ids(tmp_path, nothing_left):
    """The script is written for GPUs: its gradients are those of the CPU, and rank 0 alone says what happens."""
    program = str(PROGRAMS / "smddp_gpu.py")
    done = algorun("simulate", "-j", "1x2", program, cwd=tmp_path, ALGORUN_TEST=nothing_left, ALGORUN_CUDA_ON_CPU="1")
    assert done.code == 0, done.text
    assert done.out.count(SAYS) == 1
    for rank in range(2):
        assert f"[{rank} algo-1] device {rank} grad [1.0, 1.0, 1.0] sharded [1.0, 1.0, 1.0]" in done.out


def test_a_script_may_be_told_that_there_is_a_gpu():
    program = (
        "import smdistributed.dataparallel.torch, torch, torch.cuda.amp as library\n"
        "exec('def asks(): return torch.cuda.is_available()', {**vars(library), 'torch': torch}, places := {})\n"
        "print(torch.cuda.is_available(), places['asks'](), torch.zeros(1, device='cuda').device)"
    )
    done = python("-c", program, ALGORUN_CUDA_ON_CPU="script")
    assert done.stdout.splitlines()[-1] == "True False cpu", done.stderr
