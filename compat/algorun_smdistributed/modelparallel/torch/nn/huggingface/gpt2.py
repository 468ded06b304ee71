"""The translations of GPT-2, of the whole model and of one layer, and the hooks of its layers.

AWS's example scripts have most of them under names of their own.
"""

from .hooks import transformer_layer_hooks as get_hf_gpt2_transformer_layer_hooks
from .same import to_hf as translate_state_dict_to_hf_gpt2
from .same import to_smp as translate_hf_state_dict_to_smdistributed_gpt2

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
