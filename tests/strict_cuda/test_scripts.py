"""ALGORUN_CUDA_ON_CPU=strict in a user's own script: what it refuses, and what it says at the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from .test_jobs import CACHE, need_compiler

GOOD = """
import torch
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
model = torch.nn.Linear(4, 2).cuda()
inputs = torch.ones(2, 4, device="cuda")
for _ in range(3):
    loss = model(inputs).sum()
    loss.backward()
    print("loss", loss.item())
try:
    model(torch.ones(2, 4))
except RuntimeError as error:
    print("refused:", error)
try:
    loss.detach().numpy()
except TypeError as error:
    print("refused:", error)
try:
    torch.compile(model)
except RuntimeError as error:
    print("refused:", error)
try:
    import triton
except ImportError as error:
    print("refused:", error)
"""


def simulate(tmp_path, script, **environ):
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "-m", "algorun", "simulate", "-j", "1x1", "script.py"]
    variables = (
        os.environ | {"ALGORUN_CUDA_ON_CPU": "strict", "XDG_CACHE_HOME": CACHE, "OMP_NUM_THREADS": "1"} | environ
    )
    return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300)


def test_a_script_gets_a_gpu_that_refuses_what_a_gpu_refuses(tmp_path):
    need_compiler()
    run = simulate(tmp_path, GOOD)
    text = run.stdout + run.stderr
    assert run.returncode == 0, text
    assert (
        "refused: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        in text
    )
    assert "refused: can't convert cuda:0 device type tensor to numpy" in text
    assert text.count("not possible with ALGORUN_CUDA_ON_CPU=strict; fix: leave ") == 2
    assert (
        "rank 0: waits for the GPU: 5: item at script.py:9 (3 times), copy from pageable memory at script.py:4 (2 times)"
        in text
    )


def test_without_a_compiler_one_line_says_what_to_install(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("sh", "env", "ps"):
        if found := shutil.which(name):
            (tmp_path / "bin" / name).symlink_to(found)
    run = simulate(tmp_path, "import torch", PATH=str(tmp_path / "bin"), XDG_CACHE_HOME=str(tmp_path / "none"))
    assert run.returncode == 64
    assert (
        "ALGORUN_CUDA_ON_CPU=strict: it needs g++, which is not on PATH; fix: apt-get install g++"
        in run.stdout + run.stderr
    )


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\n", True),
        ("cuda: Optional[str] = None\nhip = None\n", False),
    ],
)
def test_a_torch_that_is_built_for_gpus_is_refused(version, refused, monkeypatch):
    from algorun_train.ranks.strict_cuda import loader

    monkeypatch.setattr(loader.glob, "glob", lambda pattern: [])
    if refused:
        with pytest.raises(loader.NotPossible, match="built for GPUs.*fix: the build for the CPU"):
            loader.refuse_a_gpu(version)
    else:
        loader.refuse_a_gpu(version)


def test_a_machine_with_a_gpu_is_refused(monkeypatch):
    from algorun_train.ranks.strict_cuda import loader

    monkeypatch.setattr(loader.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(loader.NotPossible, match="this machine has a GPU; fix: unset it"):
        loader.refuse_a_gpu("")


TIMED = """
import time, torch
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
model = torch.nn.Linear(4, 2).cuda()
model.weight.register_hook(lambda _: time.sleep(0.02))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.ones(2, 4, device="cuda")
start.record()
for _ in range(20):
    model(inputs).sum().backward()
    optimizer.step()
end.record()
print("timed", 0.4 <= start.elapsed_time(end) / 1000 < 60, flush=True)
"""


@pytest.mark.slow
def test_events_have_times_and_those_of_activities_are_the_device_s_without_a_wait(tmp_path):
    need_compiler()
    run = simulate(tmp_path, TIMED)
    text = run.stdout + run.stderr
    assert run.returncode == 0, text
    assert "timed True" in text
    assert "waits for the GPU: 2: copy from pageable memory at script.py:4 (2 times)" in text
    times = json.loads((tmp_path / "algorun-simulate/algo-1/output/data/result.json").read_text())["times"]
    assert times["activities_of"] == "GPU"
    assert times["activities"]["backward"] >= 0.3  # 20 sleeps of 20 ms, without those of the first step
    assert "a rank's GPU spent " in text


ADDRESSES = """
import ctypes, faulthandler
faulthandler.enable()
import torch
tensor = torch.arange(4.0, device="cuda")
view, other = tensor[1:], torch.empty(0, device="cuda")
print("same", view.untyped_storage().data_ptr() == tensor.data_ptr(), view.data_ptr() - tensor.data_ptr())
print("const", not hasattr(tensor, "const_data_ptr") or tensor.const_data_ptr() == tensor.data_ptr())
print("none", other.data_ptr(), torch.ones(1).data_ptr() < 1 << 62, flush=True)
ctypes.string_at(tensor.data_ptr(), 4)
"""


def test_an_address_can_be_compared_and_not_read(tmp_path):
    need_compiler()
    run = simulate(tmp_path, ADDRESSES)
    text = run.stdout + run.stderr
    assert "same True 4" in text
    assert "const True" in text
    assert "none 0 True" in text
    told = "strict: data_ptr() at script.py:7 gives an address of a GPU: it can be compared; what reads"
    assert text.count(f"[0 algo-1] ALGORUN_CUDA_ON_CPU={told}") == 1
    read = (
        "a program has read memory at an address of a GPU: not possible with ALGORUN_CUDA_ON_CPU=strict; fix: leave it out, "
        "or ALGORUN_CUDA_ON_CPU=1, or unset it; data_ptr() was first taken at script.py:7"
    )
    assert text.count(f"[0 algo-1] ALGORUN_CUDA_ON_CPU=strict: {read}") == 1
    assert "signal: rank 0 on algo-1, exit 139" in text
    assert "script.py:10" in text
