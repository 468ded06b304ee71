"""Activation checkpointing under the names of the documentation."""

from algorun_smdistributed.modelparallel.torch.checkpointing import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
