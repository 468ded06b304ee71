"""ALGORUN_CUDA_ON_CPU=1: what is written for a GPU runs on a machine without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import clean_environ
from tests.train.training_runs import Ranks, by_itself

PROGRAMS = Path(__file__).parent / "programs"
SAYS = "ALGORUN_CUDA_ON_CPU=1: there is no GPU; devices named cuda are the CPU"


@pytest.fixture(scope="module")
def found() -> dict:
    """What the program says in a process of its own, which loads torch itself."""
    argv = [sys.executable, str(PROGRAMS / "cuda_on_cpu.py")]
    environ = clean_environ(ALGORUN_CUDA_ON_CPU="1")
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=100, check=False)
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


@pytest.mark.slow(but=["environ0"])
@pytest.mark.parametrize("environ", [{}, {"ALGORUN_CUDA_ON_CPU": "0"}])
def test_without_the_switch_the_error_is_torchs_own(environ, tmp_path):
    code, text = by_itself(tmp_path, PROGRAMS / "cuda_on_cpu.py", "modules", **environ)
    assert code == 1
    assert "in modules" in text
    assert "_lazy_init" in text
    assert SAYS not in text


def test_without_the_switch_nothing_is_imported(python):
    code = "import smdistributed.dataparallel.torch, sys; print('smdistributed.cuda_on_cpu' in sys.modules)"
    assert python(code) == (0, "False\n")


def test_a_value_that_is_none_is_refused(python):
    _, text = python("import smdistributed.dataparallel.torch", ALGORUN_CUDA_ON_CPU="yes")
    assert text.strip().endswith(
        "UserError: ALGORUN_CUDA_ON_CPU: 'yes'; allowed: 0, 1, script or strict; fix: ALGORUN_CUDA_ON_CPU=1"
    )


def test_where_there_is_a_gpu_nothing_changes(python):
    """A stand-in for the GPU: that torch says there is one."""
    code = (
        "import torch; torch.cuda.is_available = lambda: True; kept = torch.cuda.synchronize\n"
        "from smdistributed import cuda_on_cpu; cuda_on_cpu.install()\n"
        "print(torch.cuda.synchronize is kept, torch._C._len_torch_function_stack())"
    )
    assert python(code) == (0, "True 0\n")


def test_data_parallel_training_with_device_ids(tmp_path):
    """The script is written for GPUs: its gradients are those of the CPU, and rank 0 alone says what happens."""
    with Ranks(tmp_path, 1, 2, [], str(PROGRAMS / "smddp_gpu.py"), ALGORUN_CUDA_ON_CPU="1") as run:
        assert run.codes() == [0, 0], run.text(0) + run.text(1)
    assert [run.text(rank).count(SAYS) for rank in range(2)] == [1, 0]
    for rank in range(2):
        assert f"device {rank} grad [1.0, 1.0, 1.0] sharded [1.0, 1.0, 1.0]\n" in run.text(rank)


def test_a_script_may_be_told_that_there_is_a_gpu(python):
    program = (
        "import smdistributed.dataparallel.torch, torch, torch.cuda.amp as library\n"
        "exec('def asks(): return torch.cuda.is_available()', {**vars(library), 'torch': torch}, places := {})\n"
        "print(torch.cuda.is_available(), places['asks'](), torch.zeros(1, device='cuda').device)"
    )
    _, text = python(program, ALGORUN_CUDA_ON_CPU="script")
    assert text.splitlines()[-1] == "True False cpu", text
