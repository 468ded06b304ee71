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


@pytest.mark.slow
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


def write_linked(folder, library):
    """Writes linked.so, a module that links `library`, which is not there."""
    (folder / "empty.cpp").write_text("")
    compiler = ["g++", "-shared", "-fPIC", "empty.cpp", "-Wl,--no-as-needed", "-o"]
    subprocess.run([*compiler, library, f"-Wl,-soname,{library}"], cwd=folder, check=True)
    subprocess.run([*compiler, "linked.so", "-L.", f"-l:{library}"], cwd=folder, check=True)
    (folder / library).unlink()


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (
            "libcudart.so.0",
            "is compiled for GPUs, and links libcudart.so.0: not possible with ALGORUN_CUDA_ON_CPU=strict",
        ),
        (
            "libc10_cuda.so",
            "is compiled for GPUs, and links libc10_cuda.so: not possible with ALGORUN_CUDA_ON_CPU=strict",
        ),
        ("libcurl.so.99", "ImportError: libcurl.so.99: cannot open shared object file: No such file or directory"),
    ],
)
def test_a_package_that_links_cuda_s_libraries_is_one_clear_import_error(tmp_path, library, words):
    need_compiler()
    write_linked(tmp_path, library)
    program = "from algorun_train.ranks.strict_cuda import import_hook; import_hook.install(); import linked"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]


REFUSED = """
import os, numpy, setuptools, torch
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
for take in (torch.from_dlpack, torch.utils.dlpack.to_dlpack, numpy.from_dlpack):
    attempt(lambda: take(ones))
from torch.utils import cpp_extension
attempt(lambda: cpp_extension.load("fast", ["fast.cpp", "fast.cu"]))
attempt(lambda: cpp_extension.load("fast", "fast.cpp", with_cuda=True))
attempt(lambda: cpp_extension.load_inline("fast", "", "__global__ void fast() {}"))
attempt(lambda: cpp_extension.CUDAExtension("fast", ["fast.cpp"]))
attempt(lambda: cpp_extension.include_paths("cuda"))
plain = cpp_extension.CppExtension("plain", ["plain.cu"])
build = dict(ext_modules=[plain], cmdclass={"build_ext": cpp_extension.BuildExtension}, script_args=["-q", "build_ext"])
attempt(lambda: setuptools.setup(name="plain", **build))
print("of the CPU", cpp_extension.CppExtension("plain", ["plain.cpp"]).sources)
attempt(lambda: torch.ops.load_library(os.path.abspath("linked.so")))
attempt(lambda: __import__("linked"))
print("of the host", torch.from_dlpack(torch.ones(3)).sum().item() + numpy.from_dlpack(torch.ones(4)).sum())
torch.cuda.nvtx.range_push("a mark")
torch.cuda.nvtx.range_pop()
torch.cuda.profiler.start()
torch.cuda.set_per_process_memory_fraction(0.5)
print("asked of the CPU's", hasattr(torch.ones(2), "__cuda_array_interface__"))
print("statistics", torch.cuda.memory_stats()["allocated_bytes.all.peak"], torch.cuda.memory_summary())
"""


def test_what_needs_a_gpu_s_kernels_is_one_clear_error_and_marks_for_profilers_are_none(tmp_path):
    need_compiler()
    write_linked(tmp_path, "libcudart.so.0")
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
        f"RuntimeError: DLPack hands over the memory of a GPU: {fix}",
        f"RuntimeError: torch.utils.cpp_extension.load('fast') compiles for GPUs (fast.cu): {fix}",
        f"RuntimeError: torch.utils.cpp_extension.load('fast') compiles for GPUs (with_cuda=True): {fix}",
        f"RuntimeError: torch.utils.cpp_extension.load_inline('fast') compiles for GPUs (cuda_sources): {fix}",
        f"RuntimeError: torch.utils.cpp_extension.CUDAExtension('fast') compiles for GPUs: {fix}",
        f"OSError: torch.utils.cpp_extension asks for CUDA's compiler and headers (CUDA_HOME): {fix}",
        f"RuntimeError: torch.utils.cpp_extension asks for CUDA's compiler and headers (CUDA_HOME): {fix}",
        "of the CPU ['plain.cpp']",
        f"OSError: linked.so ({tmp_path / 'linked.so'}) is compiled for GPUs, and links libcudart.so.0: {fix}",
        f"ImportError: linked ({tmp_path / 'linked.so'}) is compiled for GPUs, and links libcudart.so.0: {fix}",
        "of the host 7.0",
        "asked of the CPU's False",
        "statistics 0 ALGORUN_CUDA_ON_CPU=strict has no figures of a GPU's memory",
    ):
        assert line in out
    assert out.count("DLPack hands over") == 3
    assert "done" not in out
