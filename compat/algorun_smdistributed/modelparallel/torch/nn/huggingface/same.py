"""Both translations of every model."""

from __future__ import annotations

from typing import TypeVar

State = TypeVar("State")


def to_hf(state_dict: State, max_seq_len: int | None = None) -> State:
    """The state dict as it is, for the model of transformers. `max_seq_len` has no effect: no mask is kept in it."""
    return state_dict


def to_smp(state_dict: State, max_seq_len: int | None = None) -> State:
    """The state dict as it is, for smp.DistributedModel. `max_seq_len` has no effect."""
    return state_dict
