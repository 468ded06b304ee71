"""What the supervisor passes to the process that measures a host (figure_sampler.py)."""

from __future__ import annotations

from algorun.common.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplerSetup:
    """What to measure, and where to write it. `begin`: the start of the launcher, by the monotonic clock.

    `gpus`: the host has GPUs; `visible`: the value of CUDA_VISIBLE_DEVICES, None if it is unset. `silent_s`: longest answer
    of NVML; its start alone takes seconds where no process holds the driver.
    """

    host: str
    file: str
    interface: str
    folders: tuple[str, ...]
    begin: float
    gpus: bool = False
    visible: str | None = None
    silent_s: float = 60.0
