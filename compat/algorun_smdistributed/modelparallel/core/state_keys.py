"""Keys that this package adds to state dicts, beside those of the model and the optimizer."""

from __future__ import annotations

from algorun_smdistributed.script_types import StateDict
from algorun_smdistributed.signatures.optimizer_state import StatePart

PARTIAL = "_smp_is_partial"
"""the key of a state dict that says whether other ranks have more of it"""
COPIES = "_smp_copies"
"""the key of an optimizer's local state dict with the numbers of parameters whose state another rank has as well"""
SHARES = "_smp_shares"
"""the key of a local state dict that says which rows of which tensors it has, with sharded data parallelism"""
SCALE = "_smp_loss_scale"
"""the key of an optimizer's state dict with the loss scale, with fp16"""
BUILD = "build it over model.parameters()"
"""how an optimizer gets a state of the whole model, for messages"""


def with_keys(part: StatePart) -> StateDict:
    """An optimizer's local state dict."""
    return part.state | {PARTIAL: True} | ({COPIES: [*part.copies]} if part.copies else {})


def without_keys(state_dict: StateDict, is_of_one_rank: bool = False) -> StatePart:
    """The part of an optimizer's state that a local state dict holds."""
    state = {key: value for key, value in state_dict.items() if key not in (PARTIAL, COPIES)}
    return StatePart(state, state_dict.get(COPIES, ()), is_of_one_rank)
