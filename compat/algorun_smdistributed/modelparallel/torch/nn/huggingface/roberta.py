"""The translations of RoBERTa. The guide's example has another name for the second."""

from .same import to_hf as translate_state_dict_to_hf_roberta
from .same import to_smp as translate_hf_state_dict_to_smdistributed_roberta

translate_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_roberta

__all__ = [
    "translate_hf_state_dict_to_smdistributed_roberta",
    "translate_state_dict_to_hf_roberta",
    "translate_state_dict_to_smdistributed",
]
