"""The GPUs of this machine, divided between simulated hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

DEVICES = Path("/dev")


def visible(environ: Mapping[str, str], devices: Path = DEVICES) -> list[str]:
    """The GPUs that may be used: those of CUDA_VISIBLE_DEVICES, else all."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [word for word in chosen.split(",") if word and word != "-1"]
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*"))
    return [str(number) for number in sorted(int(found[1]) for found in numbers if found)]


def divided(gpus: Sequence[str], hosts: int) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each host: equal numbers of neighbours. Without one for each host none gets any."""
    each = len(gpus) // hosts
    return [",".join(gpus[number * each : (number + 1) * each]) for number in range(hosts)]
