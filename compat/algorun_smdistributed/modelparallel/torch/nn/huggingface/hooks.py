"""Hooks for smp.tp_register_with_module: how a transformers layer's arguments and results become those of the library's."""

from __future__ import annotations

from collections.abc import Callable

from algorun_smdistributed.script_types import Given, Result

Hook = Callable[..., Result]


def same_arguments(*args: Given, **kwargs: Given) -> tuple[tuple[Given, ...], dict[str, Given]]:
    """The arguments as they are: a layer is never replaced at tensor parallel degree 1."""
    return args, kwargs


def same_result(result: Given) -> Result:
    """The result as it is."""
    return result


def transformer_layer_hooks() -> tuple[Hook, Hook, Hook]:
    """The hooks before the layer is made, before it is called and after it."""
    return same_arguments, same_arguments, same_result
