"""Helpers that AWS's example scripts import; not documented."""

from __future__ import annotations

import torch

from .ranks import pp_rank, rank


def get_distribution_axis(parameter: torch.Tensor) -> None:
    """The axis that a parameter is distributed over: None, because tensor parallelism distributes none here."""
    return None


def rmsg(message: object) -> str:
    """The message with this rank before it."""
    return f"[rank {rank()}, pp_rank {pp_rank()}] {message}"
