"""Preflight of the GPUs: faults that can be seen before torch is loaded. Pure.

A fault is a failure only if no program could run. Everything else is a warning, because a user's program may compute on
the CPU. The bundled training programs check for themselves that torch can use a GPU.
"""

from __future__ import annotations

from algorun.job.values import Sourced

from . import cuda_driver
from .finding import Finding
from .probe import NO_CUDA, Machine
from .visible_gpus import VARIABLE, Visible, ignored, sliced

TOPIC = "GPUs"
ON_CPU = f"{VARIABLE}= (empty) for a job on the CPU"
EFA_SHOWN = 2  # device names shown in a message; a p5 has 32 devices


def examine(machine: Machine, slots: Sourced[int], hosts: int) -> list[Finding]:
    """All findings, for a job with `slots` ranks here and `hosts` hosts."""
    if not machine.nvidia.devices or machine.visible.hidden:
        return too_many_ranks(machine, slots)
    return [
        *choice(machine.visible, machine.nvidia.devices),
        *driver(machine),
        *torch(machine),
        *slices(machine, slots),
        *too_many_ranks(machine, slots),
        *plugin(machine, hosts),
    ]


def choice(seen: Visible, have: int) -> list[Finding]:
    """CUDA_VISIBLE_DEVICES names a GPU that this machine, with `have` GPUs, does not have: CUDA ignores it silently."""
    if not seen.wrong:
        return []
    here = "0" if have == 1 else f"0 to {have - 1}"
    fix = f"{here}, or UUIDs of nvidia-smi -L; unset it for all GPUs; {ON_CPU}"
    if seen.twice:
        return [Finding(VARIABLE, f"{seen.value!r} names a GPU twice, so CUDA shows no GPU at all", "fail", fix)]
    if not seen.count:
        return [Finding(VARIABLE, f"{seen.value!r} names no GPU of this machine, which has {have}", "fail", fix)]
    names = ", ".join(map(repr, ignored(seen)))
    value = f"{seen.wrong!r} in {seen.value!r} is not a GPU of this machine, which has {have}; CUDA ignores {names}"
    return [Finding(VARIABLE, value, "warn", fix)]


def driver(machine: Machine) -> list[Finding]:
    """The driver's library is absent, or the driver is too old for this torch."""
    found, needs = machine.nvidia, cuda_driver.least(machine.torch_cuda)
    if not found.library:
        value = f"{_gpus(found.devices)} (/dev/nvidia*), but programs find no libcuda.so.1"
        fix = f"docker run --gpus all with NVIDIA's container toolkit, or the driver's libraries; {ON_CPU}"
        return [Finding("NVIDIA driver", value, "warn", fix)]
    if cuda_driver.too_old(found, machine.torch_cuda):
        value = f"{found.driver} is too old for torch with CUDA {machine.torch_cuda}, which needs {needs} or newer"
        fix = f"a newer driver on the host, or (data-center GPUs only) an image with the package cuda-compat; {ON_CPU}"
        return [Finding("NVIDIA driver", value, "warn", fix)]
    return []


def torch(machine: Machine) -> list[Finding]:
    """torch is built without CUDA, on a machine with GPUs."""
    if machine.torch_cuda != NO_CUDA:
        return []
    value = (
        f"{machine.packages.get('torch', '')} is built without CUDA, on a machine with {_gpus(machine.nvidia.devices)}"
    )
    fix = f"the image of ./build.sh build --variant cuda, or {ON_CPU}"
    return [Finding("torch", value.strip(), "warn", fix)]


def slices(machine: Machine, slots: Sourced[int]) -> list[Finding]:
    """MIG: CUDA shows a process only one slice, and NCCL cannot tell two slices of a GPU apart."""
    divided = sliced(machine.visible, machine.nvidia)
    if not divided or slots.value < 2:
        return []
    value = f"{_gpus(len(divided))} in {sum(divided)} MIG slices: a process sees only one slice"
    return [Finding(TOPIC, value, "warn", "one rank per host, or GPUs without MIG (nvidia-smi -mig 0)")]


def too_many_ranks(machine: Machine, slots: Sourced[int]) -> list[Finding]:
    """More ranks than GPUs. A warning, because the program may compute on the CPU."""
    have = machine.gpus.value
    if not 0 < have < slots.value:
        return []
    value = f"{slots.value} ranks ({slots.source}) on {have} GPUs ({machine.gpus.source})"
    return [Finding(TOPIC, value, "warn", f"{have} slots, or {ON_CPU}")]


def plugin(machine: Machine, hosts: int) -> list[Finding]:
    """EFA devices, but NCCL does not find its plugin for them."""
    found = machine.nccl_plugin
    if hosts < 2 or not machine.efa_devices or found.path or found.left_aside or found.asked == "none":
        return []
    asked = f" for NCCL_NET_PLUGIN={found.asked}" if found.asked else ""
    value = f"{_efa(machine)}, but NCCL finds no network plugin{asked}: between hosts it uses TCP, at a fraction of the bandwidth"
    fix = "build the image with EFA_INSTALLER_VERSION (docs/image.md)"
    if found.elsewhere:
        fix = f"NCCL_NET_PLUGIN={found.elsewhere}, a file of this image"
    return [Finding("EFA", value, "warn", fix)]


def _efa(machine: Machine) -> str:
    names = machine.efa_devices
    return f"{', '.join(names[:EFA_SHOWN])}{' ..' * (len(names) > EFA_SHOWN)} can be opened"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
