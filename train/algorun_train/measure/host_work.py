"""Measures this rank's device, and this host's memory and disk. Needs no other rank; each function keeps to its seconds."""

import contextlib
import hashlib
import os
import tempfile
import time
from pathlib import Path

import torch

MIB = 2**20
GPU_SIDE, CPU_SIDE = 8192, 1024  # of the matrices
BITS_SIDE = 1024
BITS_TIMES = 3
COPIED = 256 * MIB  # beyond the caches
WRITTEN = 64 * MIB
WARM_UP = 2


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's with its threads: ranks with equal names compute equally fast, and the same bits."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()} with {torch.get_num_threads()} threads"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "CPU"


def product_speed(device: torch.device, seconds: float) -> float:
    """Operations a second of a matrix product, the best of those made in `seconds`: bf16 on a GPU, fp32 on a CPU."""
    side, dtype = (GPU_SIDE, torch.bfloat16) if device.type == "cuda" else (CPU_SIDE, torch.float32)
    matrix = torch.randn(side, side, device=device, dtype=dtype)
    best, end, number = float("inf"), time.perf_counter() + seconds, 0
    while number <= WARM_UP or time.perf_counter() < end:
        begun = time.perf_counter()
        matrix @ matrix
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number >= WARM_UP:  # the first ones load kernels
            best = min(best, time.perf_counter() - begun)
        number += 1
    return 2 * side**3 / best


def product_bits(device: torch.device) -> tuple[str, bool]:
    """A checksum of a product of numbers that are the same on all ranks, and whether it was the same each time."""
    numbers = torch.randn(BITS_SIDE, BITS_SIDE, generator=torch.Generator().manual_seed(0))
    matrix = numbers.to(device)
    sums = {hashlib.sha256((matrix @ matrix).cpu().numpy().tobytes()).hexdigest()[:12] for _ in range(BITS_TIMES)}
    return sorted(sums)[0], len(sums) == 1


def memory_speed() -> float:
    """Bytes a second of a copy in the host's memory, read and written counted once; the best of three."""
    source, to = torch.ones(COPIED, dtype=torch.uint8), torch.empty(COPIED, dtype=torch.uint8)
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        to.copy_(source)
        best = min(best, time.perf_counter() - begun)
    return COPIED / best


def disk_speed(folder: Path) -> float:
    """Bytes a second of a write with fsync into `folder`, of a file that is removed; 0.0 where none can be written."""
    block = os.urandom(MIB)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".algorun-measure-") as file:
            begun = time.perf_counter()
            for _ in range(WRITTEN // MIB):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return WRITTEN / (time.perf_counter() - begun)
    except OSError:
        return 0.0
