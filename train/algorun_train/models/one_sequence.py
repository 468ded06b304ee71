"""Tells transformers that no row of a batch holds several sequences.

Without a mask it looks for them by the values of positions, in each forward pass (`find_packed_sequence_indices`, transformers
5.x). On a GPU that waits until all that is queued has run; under torch.compile it makes a mask of every position, with which
attention takes its slower way. Batches of this project hold one sequence in each row, so the answer is known.
"""

import contextlib
import sys
from collections.abc import Iterator

import torch

LOOKS = "find_packed_sequence_indices"


@contextlib.contextmanager
def one_sequence_a_row() -> Iterator[None]:
    """Within it, models of transformers do not look. A version without that function is left as it is."""
    masks = sys.modules.get("transformers.masking_utils")
    theirs = getattr(masks, LOOKS, None)
    if masks is None or theirs is None:
        yield
        return
    setattr(masks, LOOKS, _none)
    try:
        yield
    finally:
        setattr(masks, LOOKS, theirs)


def _none(position_ids: torch.Tensor) -> None:
    """What transformers' function returns where it finds none."""
