"""The library's calls for tensor parallelism at its degree 1, where they distribute nothing.

A larger degree is refused when the job begins (mp_parameters: tensor_parallel_degree), so a script that is written for
both runs here unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import nn

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

from . import transformer_names

Class = TypeVar("Class", bound=type)


@contextlib.contextmanager
def tensor_parallelism(enabled: bool = True, **config: Given) -> Iterator[None]:
    """With one rank per group no module is distributed, whatever `config` says of them. A model of transformers that is
    made inside draws its weights, also where the script has switched that off (PreTrainedModel.init_weights)."""
    with transformer_names.initialised() if enabled else contextlib.nullcontext():
        yield


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **config: Given) -> None:
    """Changes nothing, as `tensor_parallelism`."""


def tp_register(
    dist_module: type,
    init_hook: Callable[..., Result] | None = None,
    forward_hook: Callable[..., Result] | None = None,
    return_hook: Callable[..., Result] | None = None,
) -> Callable[[Class], Class]:
    """A decorator that returns the class as it is: it is never replaced."""
    return lambda module_cls: module_cls


def tp_register_with_module(
    module_cls: type,
    dist_module: type,
    init_hook: Callable[..., Result] | None = None,
    forward_hook: Callable[..., Result] | None = None,
    return_hook: Callable[..., Result] | None = None,
) -> None:
    """Changes nothing: `module_cls` is never replaced."""


@contextlib.contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Changes nothing: weights are drawn where the model is created, so the host's memory must hold all of them."""
    yield


delayed_parameter_initialization = delay_param_initialization  # so called in places of the documentation


@contextlib.contextmanager
def model_creation(
    tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **tensor_parallel_config: Given
) -> Iterator[None]:
    """Weights that are made inside have `dtype`, torch's default where it is None, and are drawn as in
    `tensor_parallelism`. UserError for other types."""
    before = torch.get_default_dtype()
    if dtype is not None:
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise UserError(
                f"smp.model_creation: dtype = {dtype!r}; allowed: a floating-point torch.dtype; fix: torch.float32"
            )
        torch.set_default_dtype(dtype)
    try:
        with transformer_names.initialised() if tensor_parallelism else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


class NothingDistributed:
    """What DistributedModel says about tensor parallelism at degree 1."""

    def distributed_modules(self) -> Iterator[nn.Module]:
        """No modules."""
        return iter(())

    def is_distributed_parameter(self, param: nn.Parameter) -> bool:
        """False."""
        return False

    def is_distributed_buffer(self, buf: torch.Tensor) -> bool:
        """False."""
        return False

    def is_scaled_batch_parameter(self, param: nn.Parameter) -> bool:
        """False."""
        return False

    def is_scaled_batch_buffer(self, buf: torch.Tensor) -> bool:
        """False."""
        return False

    def default_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters, all of which are reduced over the data parallel group."""
        return iter(self.local_named_parameters())  # type: ignore[attr-defined]

    def scaled_batch_reducer_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """No parameters."""
        return iter(())
