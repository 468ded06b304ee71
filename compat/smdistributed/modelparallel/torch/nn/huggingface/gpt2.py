"""The translations of GPT-2."""

from .same import to_hf as translate_state_dict_to_hf_gpt2
from .same import to_smp as translate_hf_state_dict_to_smdistributed_gpt2

__all__ = ["translate_hf_state_dict_to_smdistributed_gpt2", "translate_state_dict_to_hf_gpt2"]
