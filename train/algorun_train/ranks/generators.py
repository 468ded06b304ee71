"""torch's random numbers on one rank: the generators of the CPU and of the rank's own GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

State = tuple[bytes, ...]
"""one entry for each of `generators`, which another rank with the same kind of device can go on from"""


def generators(device: torch.device) -> list[torch.Generator]:
    """What a rank with this device draws from wherever no generator is named."""
    own = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()  # there are no generators before
        own.append(torch.cuda.default_generators[device.index or 0])
    return own


def state(device: torch.device) -> State:
    """Where the generators are. The host knows: no GPU is waited for."""
    return tuple(generator.get_state().numpy().tobytes() for generator in generators(device))


def set_state(device: torch.device, wanted: State) -> None:
    """The generators go on from `wanted`."""
    for generator, content in zip(generators(device), wanted, strict=True):
        generator.set_state(torch.frombuffer(bytearray(content), dtype=torch.uint8))


@contextlib.contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """What is drawn inside, or seeded, changes nothing for what is drawn afterwards."""
    before = state(device)
    try:
        yield
    finally:
        set_state(device, before)
