"""torch.nn.utils.clip_grad_norm_ and clip_grad_value_ for gradients that are not all here.

For a model whose parameters lie on several ranks the norm is that of all of them; replicas clip reduced gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch.nn import utils

from .session import is_initialized, session
from .use import before_use

_of_one_rank, _values = utils.clip_grad_norm_, utils.clip_grad_value_


@functools.wraps(_of_one_rank)
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """As torch's own, and for parameters of several stages the same result on all ranks of the pipeline.

    All of them call it then, with the same parameters of the model. Parameters that are this rank's own only, as those
    of local_parameters(), are clipped by their own norm, without the other ranks. Not where stages share a weight, whose
    copies have to get equal gradients: then all ranks clip local_parameters() together, by the norm over all.
    """
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    before_use(given)
    part = session().staged if is_initialized() else None
    if part is None or not part.of_several_ranks(given):
        return _of_one_rank(given, max_norm, norm_type, error_if_nonfinite, foreach)
    total = part.pipeline.norm(given, float(norm_type)).float()
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(  # torch's own kind
            f"clip_grad_norm_: the norm of order {norm_type} over all stages is {total.item()}; "
            "fix: error_if_nonfinite=False, or look for the step that made it"
        )
    utils.clip_grads_with_norm_(given, max_norm, total, foreach=foreach)
    return total


@functools.wraps(_values)
def clip_grad_value_(
    parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """As torch's own."""
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    before_use(given)
    _values(given, clip_value, foreach)


def install() -> None:
    """Puts them in the place of torch's, for scripts that look the names up from now on."""
    utils.clip_grad_norm_ = utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
    utils.clip_grad_value_ = utils.clip_grad.clip_grad_value_ = clip_grad_value_
