"""torch's random numbers on one rank: the generators of the CPU and of the rank's own GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

State = tuple[bytes, ...]
"""the state of each of `generators`, in their order; another rank with the same kind of device can continue from it"""


def generators(device: torch.device) -> list[torch.Generator]:
    """The generators that torch uses on a rank with this device if the caller names none."""
    own = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()  # creates them
        own.append(torch.cuda.default_generators[device.index or 0])
    return own


def state(device: torch.device) -> State:
    """The current state of the generators. The host keeps it, so this does not wait for a GPU."""
    return tuple(generator.get_state().numpy().tobytes() for generator in generators(device))


def set_state(device: torch.device, wanted: State) -> None:
    """Sets the generators to the state `wanted`."""
    for generator, content in zip(generators(device), wanted, strict=True):
        generator.set_state(torch.frombuffer(bytearray(content), dtype=torch.uint8))


@contextlib.contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """On exit the generators have the state that they had on entry, whatever the block draws or seeds."""
    before = state(device)
    try:
        yield
    finally:
        set_state(device, before)
