"""Which of transformers' plans the ranks of a tensor group get, and what they cannot share. No ranks run here."""

from __future__ import annotations

import re

import pytest

from algorun_train.common.errors import UserError
from algorun_train.models.folder_classes import skeleton
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_model import prepare_transformers
from algorun_train.models.tensor_plan import experts_line, plans_of
from tests.train.model_folders import write_tokenizer
from tests.train.tiny_models import tiny_model
from tests.train.training_runs import TRANSFORMERS, load_once

load_once(*TRANSFORMERS)
prepare_transformers()
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
SPLIT, WHOLE = (
    f"experts: each rank of a tensor group has 1 / 2 of {part}" for part in ("the width of each", "them, whole")
)


def made(path, kind, **changes):
    tiny_model(kind, CLASSES[kind], vocab_size=300, **changes).save_pretrained(path)
    return read_folder(write_tokenizer(path), "option --model")


@pytest.mark.parametrize(
    ("kind", "changes", "lines"),
    [
        ("llama", {}, [None]),
        ("mixtral", {}, [SPLIT, WHOLE]),
        ("mixtral", {"intermediate_size": 45}, [WHOLE]),
        ("mixtral", {"num_local_experts": 3}, [SPLIT]),
        ("deepseek_v2", {"moe_intermediate_size": 15}, [WHOLE]),
        ("gpt_oss", {}, [WHOLE]),
        ("qwen3_moe", {"mlp_only_layers": [0, 1]}, [None, None]),  # all of its layers are dense
    ],
)
def test_experts_are_split_where_the_plan_has_them_and_ranks_divide_their_width_else_whole(
    tmp_path, kind, changes, lines
):
    folder = made(tmp_path, kind, **changes)
    plans = plans_of(folder, None, 2)
    assert [experts_line(skeleton(folder, None), plan, 2) for plan in plans] == lines
    for plan in plans:  # no plan has both; experts that each token goes through are layers as others
        assert not {"moe_tp_experts", "ep_dispatch_experts"} <= set(plan.values())
        assert any(".shared_experts." in name for name in plan) == (kind == "deepseek_v2")


# The number of ranks, what the error names, and each number that is allowed.
REFUSED = [
    ("llama", HEADS | {"intermediate_size": 45}, 2, "intermediate_size is 45", "1"),
    ("llama", {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}, 4, "num_attention_heads is 6 and num_key_value_heads is 3", "1, 3"),
    ("mixtral", HEADS | {"intermediate_size": 45, "num_local_experts": 3}, 2, "intermediate_size is 45 and num_local_experts is 3", "1"),
    ("mixtral", HEADS | {"intermediate_size": 44, "num_local_experts": 6}, 8, "num_attention_heads is 4 and num_key_value_heads is 4 and intermediate_size is 44 and num_local_experts is 6", "1, 2, 4"),
    ("gpt_oss", {"num_local_experts": 6}, 4, "num_local_experts is 6", "1, 2, 3, 6"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "ranks", "sizes", "allowed"), REFUSED)
def test_what_ranks_cannot_share_is_named_with_every_number_that_they_can(
    tmp_path, kind, changes, ranks, sizes, allowed
):
    folder = made(tmp_path, kind, **changes)
    text = f"{sizes}, which {ranks} ranks cannot share; allowed: {allowed}; fix: one of them, and --shard for the rest"
    with pytest.raises(UserError, match=re.escape(f"option --tp: {ranks}: {tmp_path}: {CLASSES[kind]}: {text}")):
        plans_of(folder, None, ranks)
    for number in range(1, 9):
        if str(number) in allowed.split(", "):
            plans_of(folder, None, number)
        else:
            with pytest.raises(UserError):
                plans_of(folder, None, number)
