"""The translations of BERT."""

from .same import to_hf as translate_state_dict_to_hf_bert
from .same import to_smp as translate_hf_state_dict_to_smdistributed_bert

__all__ = ["translate_hf_state_dict_to_smdistributed_bert", "translate_state_dict_to_hf_bert"]
