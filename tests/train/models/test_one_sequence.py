"""A language model's forward pass asks no value of a tensor: on a GPU it would wait for all that is queued."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils

from algorun_train.models.folder_model import LanguageModel
from tests.train.tiny_models import tiny_model
from tests.train.training_runs import TRANSFORMERS, load_once

load_once(*TRANSFORMERS)
ROWS = torch.arange(2, 20).view(2, 9)
FAMILIES = {
    "gemma2": "Gemma2ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


class Values(TorchDispatchMode):
    """Counts the values that the program takes out of tensors."""

    taken = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.taken += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_forward_pass_takes_no_value_and_computes_the_same(kind):
    model = tiny_model(kind, FAMILIES[kind]).eval()
    with Values() as theirs:
        expected = model(input_ids=ROWS, use_cache=False).logits
    with Values() as ours:
        assert torch.equal(LanguageModel(model)(ROWS), expected)
    assert (theirs.taken > 0, ours.taken) == (True, 0)


@pytest.mark.slow
def test_compiled_attention_is_causal_without_a_mask():
    model = LanguageModel(tiny_model("llama", FAMILIES["llama"]).eval())
    found = torch._dynamo.explain(model)(ROWS)
    assert found.graph_break_count == 0
    assert "cumsum" not in str(found.graphs[0].graph)


def test_a_user_s_own_rows_of_several_sequences_are_still_found():
    model = LanguageModel(tiny_model("llama", FAMILIES["llama"]).eval())
    before = masking_utils.find_packed_sequence_indices
    with pytest.raises(IndexError):
        model(ROWS + 10**6)  # no word has this number
    model(ROWS)
    assert masking_utils.find_packed_sequence_indices is before
