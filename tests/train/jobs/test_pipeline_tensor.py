"""`pipeline --model FOLDER --tp N`: groups of ranks compute each stage together; the result is that of one process."""

from __future__ import annotations

import io
import re

import pytest
from safetensors.torch import load_file

from algorun_train.common.errors import UserError
from algorun_train.jobs import check
from tests.train.model_folders import write_language_model, write_text, write_tokenizer
from tests.train.tiny_models import tiny_model
from tests.train.training_runs import TRANSFORMERS, Ranks, load_once, once

from .test_ddp_tensor import EXPERTS, FEW, WHOLE, compare_with_one_process, made_of, measured
from .test_folder_families import write

load_once(*TRANSFORMERS, "tokenizers")
PIPELINE = "algorun_train.jobs.pipeline"
KINDS = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "phi3", "gpt_neox")
# ranks: layouts as folder_step.py reads them: ranks of a pipeline, shards, precision, ranks of a tensor group
STAGES = {2: ["1,1,{},2"], 4: ["2,1,{},2"], 8: ["2,1,{},2", "2,2,{},2"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "kinds"),
    [(4, " ".join(KINDS)), (2, "llama qwen3"), (8, "llama qwen3")],
    ids=["4", "2", "8"],
)
def test_the_first_step_is_that_of_one_process(tmp_path, world, kinds):
    """Norms of heads, of which each rank has a summand of the gradient, are in Qwen3; so are tied weights, in two stages."""
    folders = [
        write(tmp_path / kind, kind, **({"tie_word_embeddings": True} if kind == "qwen3" else {}))
        for kind in kinds.split()
    ]
    compare_with_one_process(tmp_path, folders, world, STAGES[world], "float64")


@pytest.mark.slow
def test_experts_are_computed_in_one_stage_too(tmp_path):
    """They look at values, and the model of a pipeline has none before its stages are known."""
    folders = [made_of(kind, tmp_path) for kind in ("mixtral", "mixtral whole", "gpt_oss")]
    compare_with_one_process(tmp_path, folders, 2, STAGES[2], "float32")


@pytest.mark.slow
def test_it_is_in_float32_too(tmp_path):
    folders = [made_of(kind, tmp_path) for kind in (*KINDS, *EXPERTS)]
    compare_with_one_process(tmp_path, folders, 4, STAGES[4], "float32")


@pytest.mark.slow
def test_experts_and_others_are_in_float32_on_eight_ranks(tmp_path):
    folders = [made_of(kind, tmp_path) for kind in ("llama", "mixtral", *WHOLE)]
    compare_with_one_process(tmp_path, folders, 8, ["0,2,{},2", *STAGES[8]], "float32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "precision"),
    [("qwen2 gemma2 phi3 gpt_neox", "float64"), ("mixtral qwen3_moe", "float32")],
    ids=["dense", "experts"],
)
def test_the_other_families_are_those_of_one_process_on_eight_ranks(tmp_path, kinds, precision):
    """In groups of two: replicas, two and four shards, and two stages."""
    folders = [made_of(kind, tmp_path) for kind in kinds.split()]
    layouts = ["0,1,{},2", "0,2,{},2", "0,4,{},2", *STAGES[8]]
    compare_with_one_process(tmp_path, folders, 8, layouts, precision)


# Options beside --pp 2 --tp 2. The schedules run two stages of each rank, some with backward passes in two parts.
WAYS = {
    "interleaved": ["--schedule", "interleaved", "--chunks", "2"],
    "zbv": ["--schedule", "zbv"],
    "recompute": ["--recompute", "True", "--explain", "True"],
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_schedule_trains_as_one_process(tmp_path, way):
    folder, text = write_language_model(tmp_path / "llama"), write_text(tmp_path / "text", 60)
    words = [*FEW, "--model", str(folder), "--train", str(text), "--batch-size", "8"]
    layouts = {"alone": (1, ["--pp", "1", "--microbatches", "4"]), way: (4, ["--pp", "2", "--tp", "2", *WAYS[way]])}
    found = {}
    for name, (slots, own) in layouts.items():
        with Ranks(tmp_path / name, 1, slots, once([*words, *own]), program=PIPELINE) as ranks:
            assert ranks.codes() == [0] * slots, ranks.text()
            said = ranks.text()
        found[name] = load_file(tmp_path / name / "host0" / "model" / "model.safetensors")
    assert "1 pipeline of 2 tensor groups" in said
    assert ("memory: planned against measured" in said) == (way == "recompute")
    assert "tensor parallel: 2 ranks compute each layer together" in said
    for name, weight in found["alone"].items():
        assert float((found[way][name] - weight).norm()) <= 1e-5 * float(weight.norm()), name


@pytest.mark.slow
def test_a_rank_holds_its_part_of_its_stage_s_weights_gradients_and_moments(ranks, tmp_path):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    folder = write_language_model(tmp_path / "llama", num_hidden_layers=4, **heads)
    rows = measured(ranks, tmp_path, folder, 4, 2, 1, 2)
    words, width, inner, layers = 300, 32, 48, 4
    split = 2 * words * width + layers * (4 * width * width + 3 * width * inner)
    norms = (2 * layers + 1) * width
    for key, times in (("weights", 1), ("gradients", 1), ("moments", 2)):
        assert sum(row[key] for row in rows) == 4 * times * (split + 2 * norms)
        assert [rows[0][key], rows[2][key]] == [rows[1][key], rows[3][key]]
    assert [row["logits"] for row in rows] == [0, 0, words // 2, words // 2]


@pytest.mark.slow
def test_ranks_of_a_group_drop_the_same_activations_and_stay_equal(ranks, tmp_path):
    dropout = {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attention_dropout": 0.2}
    tiny_model("phi", "PhiForCausalLM", vocab_size=300, **dropout).save_pretrained(tmp_path / "phi")
    rows = measured(ranks, tmp_path, write_tokenizer(tmp_path / "phi"), 4, 2, 1, 2)
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        assert one["whole"] == other["whole"] != {}
        assert one["next"] == other["next"]


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        (None, [], "option --tp: 2, with the embedded gpt; allowed: with a Hugging Face folder; fix: "),
        ({"num_key_value_heads": 1}, [], "num_key_value_heads is 1, which 2 ranks cannot share; allowed: 1;"),
    ],
    ids=["embedded", "heads of keys"],
)
@pytest.mark.slow(but=["embedded"])
def test_what_a_model_cannot_have_is_one_error_of_all_ranks(ranks, tmp_path, changes, options, words):
    args = ["--tp", "2", "--pp", "1", "--epochs", "1", *options]
    if changes is not None:
        folder = write_language_model(tmp_path / "llama", **changes)
        args += ["--model", str(folder), "--train", str(write_text(tmp_path / "text", 20)), "--context", "16"]
    job = ranks(1, 2, *args, program=PIPELINE)
    assert job.codes() == [64, 64], job.text()
    assert re.search(words, job.text()), job.text()
    assert "step:" not in job.text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--tp", "3"], "option --tp: 3 does not divide the 4 ranks; allowed: 1, 2, 4; fix: "),
        (["--tp", "2", "--pp", "4"], "option --pp: 4 does not divide the job's 2 tensor groups; allowed: 1, 2; fix: "),
        (["--tp", "2", "--pp", "1", "--shard", "4"], "option --shard: 4 does not divide the 2 pipelines; allowed: 1, 2, all"),
    ],
)  # fmt: skip
def test_what_no_model_can_have_is_refused_before_any_rank_starts(words, text, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("4\n"))
    with pytest.raises(UserError, match=re.escape(text)):
        check.main(["pipeline", *words])
