"""What torch chooses by the device runs on the strict device, with the numbers of the CPU; what cannot run is one clear error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .test_jobs import CACHE, need_compiler

HERE = Path(__file__).parent
# Not on this device, or as on a GPU: sparse tensors; views that torch's sample has of the CPU's tensor; sections on the device.
DIFFERENT = {
    "sparse.sampled_addmm": "SparseCsrCUDA",
    "sparse.mm reduce": "SparseCsrCUDA",
    "to_sparse": "ALGORUN_CUDA_ON_CPU=strict has no Sparse tensors",
    "as_strided partial_views": "other values",
    "tensor_split": "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on cuda:0",
}
LEAST_EQUAL = 600  # of some 700 operators; each version of torch has more


def simulate(tmp_path, layout, program):
    environ = os.environ | {"ALGORUN_CUDA_ON_CPU": "strict", "XDG_CACHE_HOME": CACHE, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "algorun", "simulate", "-j", layout, str(program)]
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_layers_give_the_cpu_s_numbers(tmp_path):
    need_compiler()
    out = simulate(tmp_path, "1x2", HERE / "layers.py")
    assert "rank 0: 32 layers are equal" in out
    assert "rank 1: 0 layers are equal" in out


# Torch's 700 operators take minutes; test_layers_give_the_cpu_s_numbers has those that torch chooses by the device.
@pytest.mark.slow
def test_torch_s_own_list_of_operators_gives_the_cpu_s_numbers(tmp_path):
    need_compiler()
    pytest.importorskip("expecttest", reason="torch's list of operators needs it (pip install expecttest)")
    out = simulate(tmp_path, "1x1", HERE / "operators.py")
    found = json.loads(re.search(r"operators: (\{.*\})", out)[1])
    unknown = {name: what for name, what in found["different"].items() if DIFFERENT.get(name, "\0") not in what}
    assert not unknown
    assert found["equal"] >= LEAST_EQUAL


REFUSED = """
import torch
ones = torch.ones(1, 2, 8, 16, device="cuda")

def attempt(function):
    try:
        print("done", function())
    except Exception as error:
        print(f"{type(error).__name__}: {error}")

attempt(torch.cuda.CUDAGraph)
attempt(torch.cuda.MemPool)
attempt(lambda: ones.__cuda_array_interface__)
attempt(lambda: torch.ops.aten._flash_attention_forward(ones, ones, ones, None, None, 8, 8, 0.0, False, False))
attempt(lambda: torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")(ones))
attempt(torch.cuda.memory._record_memory_history)
attempt(ones.to_sparse)
torch.cuda.nvtx.range_push("a mark")
torch.cuda.nvtx.range_pop()
torch.cuda.profiler.start()
torch.cuda.set_per_process_memory_fraction(0.5)
print("asked of the CPU's", hasattr(torch.ones(2), "__cuda_array_interface__"))
print("statistics", torch.cuda.memory_stats()["allocated_bytes.all.peak"], torch.cuda.memory_summary())
"""


def test_what_needs_a_gpu_s_kernels_is_one_clear_error_and_marks_for_profilers_are_none(tmp_path):
    need_compiler()
    (tmp_path / "script.py").write_text(REFUSED)
    out = simulate(tmp_path, "1x1", "script.py")
    fix = "not possible with ALGORUN_CUDA_ON_CPU=strict; fix: leave it out, or ALGORUN_CUDA_ON_CPU=1, or unset it"
    for line in (
        f"RuntimeError: torch.cuda.CUDAGraph records kernels of a GPU: {fix}",
        f"RuntimeError: torch.cuda.MemPool holds memory of a GPU: {fix}",
        f"RuntimeError: __cuda_array_interface__ is for libraries with kernels for GPUs: {fix}",
        "NotImplementedError: ALGORUN_CUDA_ON_CPU=strict cannot run aten::_flash_attention_forward: it has a kernel for GPUs "
        "and none for the CPU; fix: choose what has one (attention 'sdpa' or 'eager'), or ALGORUN_CUDA_ON_CPU=1, or a machine with a GPU",
        f"AttributeError: torch._C._cuda_jiterator_compile_and_launch_kernel is part of a build for GPUs: {fix}",
        f"AttributeError: torch._C._cuda_record_memory_history is part of a build for GPUs: {fix}",
        "NotImplementedError: ALGORUN_CUDA_ON_CPU=strict has no Sparse tensors",
        "asked of the CPU's False",
        "statistics 0 ALGORUN_CUDA_ON_CPU=strict has no figures of a GPU's memory",
    ):
        assert line in out
    assert "done" not in out
