"""The translations of GPT-2, of the whole model and of one layer, and the hooks of its layers.

AWS's example scripts have most of them under names of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from algorun_smdistributed.script_types import Given, Result

from .same import to_hf as translate_state_dict_to_hf_gpt2
from .same import to_smp as translate_hf_state_dict_to_smdistributed_gpt2

Hook = Callable[..., Result]

translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gpt2
translate_hf_block_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gpt2
translate_layer_state_dict_to_hf_gpt2_block = translate_state_dict_to_hf_gpt2

__all__ = [
    "get_hf_gpt2_transformer_layer_hooks",
    "translate_hf_block_state_dict_to_smdistributed",
    "translate_hf_state_dict_to_smdistributed",
    "translate_hf_state_dict_to_smdistributed_gpt2",
    "translate_layer_state_dict_to_hf_gpt2_block",
    "translate_state_dict_to_hf_gpt2",
]


def _same_arguments(*args: Given, **kwargs: Given) -> tuple[tuple[Given, ...], dict[str, Given]]:
    """The arguments as they are: a layer is never replaced at tensor parallel degree 1."""
    return args, kwargs


def _same_result(result: Given) -> Result:
    """The result as it is."""
    return result


def get_hf_gpt2_transformer_layer_hooks() -> tuple[Hook, Hook, Hook]:
    """For smp.tp_register_with_module: the hooks before the layer is made, before it is called and after it."""
    return _same_arguments, _same_arguments, _same_result
