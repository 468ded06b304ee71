"""Families of language models: the first step of two ranks, as replicas, shares and stages, is that of one process."""

from __future__ import annotations

import pytest
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from algorun_train.models.folder_model import prepare_transformers
from tests.train.model_folders import write_tokenizer
from tests.train.tiny_models import tiny_model
from tests.train.training_runs import TRANSFORMERS, Ranks, load_once

from .test_folder_layouts import LAYOUTS, LIMIT_S, NEAR, PROGRAM, distances

load_once(*TRANSFORMERS)
prepare_transformers()
DENSE = (
    *(
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "phi",
        "phi3",
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "opt",
    ),
    *(
        "bloom",
        "falcon",
        "stablelm",
        "starcoder2",
        "olmo",
        "olmo2",
        "cohere",
        "granite",
        "glm",
        "mamba",
        "mamba2",
        "bamba",
    ),
    *("falcon_h1", "nemotron", "smollm3"),
)
EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe")
# Some of torch's products for experts do not know float64.
PARTS = {f"{start + 1} of 7": ("float64", DENSE[start::7]) for start in range(7)} | {"experts": ("float32", EXPERTS)}
INSIDE = 1e-6  # some families compute a part in float32 whatever their weights are: norms (Gemma), states (Mamba), attention (GPT-Neo)
NO_DROPOUT = dict.fromkeys(
    ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout", "dropout", "embed_dropout",
     "resid_dropout", "residual_dropout", "activation_dropout", "embedding_dropout"), 0.0)  # fmt: skip
VOCABULARY = 300


def write(folder, kind, **changes):
    known = tiny_model(kind, CLASSES[kind]).config.to_dict()
    off = {key: value for key, value in NO_DROPOUT.items() if isinstance(known.get(key), float)}
    tiny_model(kind, CLASSES[kind], vocab_size=VOCABULARY, **(off | changes)).save_pretrained(folder)
    return write_tokenizer(folder)


def run(base, world, folders, layouts, precision):
    words = [f"{layout},{precision}" for layout in layouts]
    ranks = Ranks(base, 1, world, [":".join(map(str, folders)), str(base / "found.pt"), *words], program=PROGRAM)
    try:
        assert ranks.codes(LIMIT_S) == [0] * world, "\n".join(map(ranks.text, range(world)))
    finally:
        ranks.kill()
    return torch.load(base / "found.pt", weights_only=True)


# `make test` has one family in two ranks, and every family in one process.
@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_the_first_step_of_a_family_in_two_ranks_is_that_of_one_process(tmp_path, part):
    precision, kinds = PARTS[part]
    near = max(NEAR[precision], INSIDE)
    folders = [write(tmp_path / kind, kind) for kind in kinds]
    alone = run(tmp_path / "alone", 1, folders, LAYOUTS["1"].values(), precision)
    found = run(tmp_path / "ranks", 2, folders, LAYOUTS["2"].values(), precision)
    for kind in kinds:
        one = alone[kind][f"0,1,{precision}"]
        for name, layout in LAYOUTS["2"].items():
            other = found[kind][f"{layout},{precision}"]
            far = distances(other, one)
            worst = max(far, key=far.__getitem__)
            print(f"{kind} {name}: {far[worst]:.1e} {worst}, loss {abs(other['loss'] / one['loss'] - 1):.1e}")
            assert far[worst] < near, (kind, name, worst)
            assert other["loss"] == pytest.approx(one["loss"], rel=near), (kind, name)
