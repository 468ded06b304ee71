"""The translations of GPT-Neo. AWS's example scripts have another name for the second."""

from .same import to_hf as translate_state_dict_to_hf_gptneo
from .same import to_smp as translate_hf_state_dict_to_smdistributed_gptneo

translate_hf_gptneo_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gptneo

__all__ = [
    "translate_hf_gptneo_state_dict_to_smdistributed",
    "translate_hf_state_dict_to_smdistributed_gptneo",
    "translate_state_dict_to_hf_gptneo",
]
