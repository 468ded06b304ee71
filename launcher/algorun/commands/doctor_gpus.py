"""The GPU part of `algorun doctor`: the driver, each GPU as nvidia-smi shows it, and whether torch can use them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from algorun.job.values import Sourced
from algorun.machine import cuda_driver, preflight_gpus, program_output
from algorun.machine.finding import Finding
from algorun.machine.nvidia import COMPAT
from algorun.machine.probe import NO_CUDA, Machine

FIELDS = ("index", "name", "memory.total", "memory.used", "compute_mode", "mig.mode.current")
SMI = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
IN_USE = 0.1  # share of a GPU's memory; the driver itself needs less
# Prints the number of GPUs, or the error that a rank would get: the first line only, without torch's stack frames.
NO_CODE = "no kernel image"
OTHER_TORCH = "another instance type, or an image with a torch for it: python -c 'import torch; print(torch.cuda.get_arch_list())'"
TORCH = """
try:
    import torch
    torch.cuda.init()
    count = torch.cuda.device_count()
    for number in {torch.cuda.get_device_capability(n): n for n in range(count)}.values():
        torch.ones(1, device=number).add(1).item()  # a torch without code for this GPU fails only here
    print(count)
except Exception as error:
    print((str(error).strip() or repr(error)).splitlines()[0])
"""


def examine(machine: Machine, hosts: int) -> list[Finding]:
    """All findings about GPUs, for a job of `hosts` hosts with one rank on each GPU."""
    found = [Finding("GPUs", f"{machine.gpus.value} ({machine.gpus.source})"), _driver(machine)]
    if not machine.nvidia.devices:
        return found
    if machine.visible.hidden:
        seen = machine.visible
        return [*found, Finding(seen.variable, f"{seen.value!r} hides all GPUs: jobs compute on the CPU")]
    slots = Sourced(max(machine.gpus.value, 1), "one rank on each GPU")
    torch = _torch(machine)
    silent = "warn" if torch else "fail"  # a container may have the driver's libraries but not nvidia-smi
    found += cards(program_output.lines(*SMI)) or [
        Finding("nvidia-smi", "does not answer", silent, "install the NVIDIA driver or its container toolkit")
    ]
    return [*found, *preflight_gpus.examine(machine, slots, hosts), *torch]


def _driver(machine: Machine) -> Finding:
    """The installed driver, the version that torch needs, and the image's own libcuda."""
    found, needs = machine.nvidia, cuda_driver.least(machine.torch_cuda)
    wanted = f"; torch with CUDA {machine.torch_cuda} needs {needs} or newer" if needs else ""
    if not found.driver:
        return Finding("NVIDIA driver", f"none{wanted}", "warn" if found.devices else "ok")
    if not found.devices:
        value = f"{found.driver}, but no GPU is visible (/dev/nvidia*){wanted}"
        return Finding("NVIDIA driver", value, "warn", "docker run --gpus all, unless jobs here need no GPU")
    if not found.compat:
        return Finding("NVIDIA driver", f"{found.driver}{wanted}")
    use = (
        "ranks load it"
        if cuda_driver.compat_helps(found, machine.torch_cuda)
        else "not used: the driver is new enough, or a GPU is a GeForce, a TITAN or of unknown model"
    )
    return Finding("NVIDIA driver", f"{found.driver}{wanted}; {COMPAT} has {found.compat} ({use})")


def cards(rows: Sequence[str]) -> list[Finding]:
    """A finding per GPU. `rows`: lines of `nvidia-smi --query-gpu` with FIELDS, memory in MiB."""
    found = []
    for row in rows:
        values = [value.strip() for value in row.split(",")]
        if len(values) == len(FIELDS):
            found.append(_card(*values))
    return found


def _card(index: str, name: str, total: str, used: str, mode: str, mig: str) -> Finding:
    topic, value = f"GPU {index}", f"{name}, {used} of {total} MiB in use"
    if mode not in ("Default", "[N/A]", "[Not Supported]"):
        fix = f"nvidia-smi -i {index} -c DEFAULT, as root on the host"
        return Finding(topic, f"{value}, compute mode {mode}", "fail" if mode == "Prohibited" else "warn", fix)
    if mig == "Enabled":
        fix = "one rank per host, or nvidia-smi -mig 0 on the host"
        return Finding(topic, f"{value}, divided into MIG slices: a process sees only one", "warn", fix)
    if used.isdigit() and total.isdigit() and int(used) > IN_USE * int(total):
        return Finding(topic, f"{value} by other processes", "warn", "end them; nvidia-smi lists them")
    return Finding(topic, value)


def _torch(machine: Machine) -> list[Finding]:
    """Whether torch sees the GPUs, in the environment that a rank would get."""
    if machine.torch_cuda in ("", NO_CUDA):
        return []
    path = cuda_driver.with_compat(machine.nvidia, machine.torch_cuda, os.environ.get("LD_LIBRARY_PATH", ""))
    environ = {**os.environ, **({"LD_LIBRARY_PATH": path} if path else {})}
    answer = program_output.ask(sys.executable, "-I", "-W", "ignore", "-c", TORCH, environ=environ)
    result = answer.failure or (answer.lines[-1] if answer.lines else "its process printed nothing")
    if result.isdigit() and result != "0":
        return [Finding("torch sees", f"{result} GPUs" if result != "1" else "1 GPU")]
    value = "no GPU, and shows no error" if result == "0" else f"no GPU: {result}"
    fix = OTHER_TORCH if NO_CODE in result else preflight_gpus.ON_CPU
    return [Finding("torch sees", value, "fail", fix)]
