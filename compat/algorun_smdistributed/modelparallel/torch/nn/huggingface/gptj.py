"""The translations of GPT-J. The guide has the second under one name, AWS's example scripts under another."""

from .same import to_hf as translate_state_dict_to_hf_gptj
from .same import to_smp as translate_hf_state_dict_to_smdistributed_gptj

translate_hf_gptj_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gptj
translate_hf_gptj_state_dict_to_smdistributed_gptj = translate_hf_state_dict_to_smdistributed_gptj

__all__ = [
    "translate_hf_gptj_state_dict_to_smdistributed",
    "translate_hf_gptj_state_dict_to_smdistributed_gptj",
    "translate_hf_state_dict_to_smdistributed_gptj",
    "translate_state_dict_to_hf_gptj",
]
