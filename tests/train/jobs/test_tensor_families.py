"""Families of language models in tensor groups: two ranks compute the first step of one process, or the job names why not.

The table of docs/models.md is that of this file.
"""

from __future__ import annotations

import pytest

from algorun_train.models.folder_model import prepare_transformers
from tests.conftest import ROOT
from tests.train.training_runs import TRANSFORMERS, load_once

from .test_ddp_tensor import steps
from .test_folder_families import INSIDE, run, write
from .test_folder_layouts import NEAR, distances

load_once(*TRANSFORMERS)
prepare_transformers()
EQUAL = (
    *("llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gptj"),
    *("gpt_neox", "codegen", "starcoder2", "olmo", "olmo2", "olmo3", "cohere", "cohere2", "granite", "glm", "glm4"),
    *("nemotron", "smollm3", "exaone4", "helium", "seed_oss", "arcee"),
)
EXPERTS = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "deepseek_v2", "dots1", "ernie4_5", "ernie4_5_moe"),
    *("phimoe", "glm4_moe", "gpt_oss"),
)
NO_PLAN = "has no tensor parallel plan in transformers"
REFUSED = dict.fromkeys(
    ("gpt2", "gpt_neo", "opt", "bloom", "falcon", "stablelm", "mamba", "mamba2", "biogpt", "persimmon", "xglm", "jetmoe"),
    NO_PLAN,
) | {
    "hunyuan_v1_dense": "splits no layer",
    "bamba": "splits no layer",
    "falcon_h1": "splits no layer",
    "apertus": ".mlp.act_fn.alpha_",
}  # fmt: skip
# Some of torch's products for experts do not know float64.
PARTS = {f"{start + 1} of 6": ("float64", EQUAL[start::6]) for start in range(6)} | {
    "experts": ("float32", EXPERTS),
    "refused": ("float32", tuple(REFUSED)),
}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_two_ranks_compute_the_first_step_of_one_process_or_refuse_the_family_by_name(tmp_path, part):
    precision, kinds = PARTS[part]
    near = max(NEAR[precision], INSIDE)
    folders = [write(tmp_path / kind, kind) for kind in kinds]
    layout = f"0,1,{precision},2"
    found = steps(tmp_path / "ranks", 2, folders, [layout])
    if part == "refused":
        for kind, words in REFUSED.items():
            assert words in found[kind][layout]["refused"], kind
        return
    alone = run(tmp_path / "alone", 1, folders, ["0,1"], precision)
    for kind in kinds:
        one, other = alone[kind][f"0,1,{precision}"], found[kind][layout]
        far = distances(other, one)
        worst = max(far, key=far.__getitem__)
        print(f"{kind}: {far[worst]:.1e} {worst}")
        assert far[worst] < near, (kind, worst)
        assert other["loss"] == pytest.approx(one["loss"], rel=near), kind


def test_the_page_names_each_family():
    page = (ROOT / "docs" / "models.md").read_text()
    absent = [kind for kind in (*EQUAL, *EXPERTS, *REFUSED) if f"`{kind}`" not in page]
    assert absent == []
