"""Configs of folders: with which of them training is not what transformers does, and what the error says."""

import json
from dataclasses import replace

import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.models import folder_check
from algorun_train.models.causal_check import check_language_model
from algorun_train.models.folder_check import checked_folder
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_model import build_model, load_weights, prepare_transformers
from algorun_train.models.used_weights import used_on_meta
from tests.train.model_folders import write_language_model, write_vit
from tests.train.tiny_models import tiny_config, tiny_model, write_tiny
from tests.train.training_runs import TRANSFORMERS, load_once

load_once(*TRANSFORMERS, "transformers.models.vit.modeling_vit", "tokenizers")
prepare_transformers()


def edit(folder, **changes):
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


LOSSES = {
    "experts' balance": (
        "MixtralForCausalLM",
        "mixtral",
        {"output_router_logits": True},
        "output_router_logits to false",
    ),
    "JetMoe's": ("JetMoeForCausalLM", "jetmoe", {"output_router_logits": True}, "output_router_logits to false"),
    "z-loss": ("BambaForCausalLM", "bamba", {"z_loss_coefficient": 0.1}, "z_loss_coefficient to 0"),
    "n-grams": ("ProphetNetForCausalLM", "prophetnet", {}, "disable_ngram_loss to true"),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_config_that_adds_to_the_loss_is_refused(tmp_path, case):
    architecture, kind, changes, fix = LOSSES[case]
    folder = write_tiny(tmp_path, tiny_model(kind, architecture, **changes))
    with pytest.raises(UserError, match=f"is not the cross-entropy of the next token .*fix: set {fix} in config.json"):
        check_language_model(folder, 0)


def test_routers_whose_loss_counts_nothing_are_trained(tmp_path):
    changes = {"output_router_logits": True, "router_aux_loss_coef": 0.0}
    assert check_language_model(write_tiny(tmp_path, tiny_model("mixtral", "MixtralForCausalLM", **changes)), 0) is None


@pytest.mark.parametrize(
    ("kind", "architecture", "fix", "causal"),
    [
        ("bert", "BertLMHeadModel", "set is_decoder to true", {"is_decoder": True}),
        ("xlm", "XLMWithLMHeadModel", "set causal to true", {"causal": True}),
        ("xlnet", "XLNetLMHeadModel", "give a causal model", None),
        ("gemma3_text", "Gemma3ForCausalLM", "set use_bidirectional_attention to false", {"use_bidirectional_attention": False}),
    ],
)  # fmt: skip
def test_a_model_that_sees_later_tokens_is_refused_until_its_config_says_that_it_does_not(
    tmp_path, kind, architecture, fix, causal
):
    both = {"use_bidirectional_attention": True} if kind == "gemma3_text" else {}
    with pytest.raises(UserError, match=f"sees the tokens that it shall predict.*fix: {fix}"):
        check_language_model(write_tiny(tmp_path / "it", tiny_model(kind, architecture, **both)), 0)
    if causal:
        assert (
            check_language_model(write_tiny(tmp_path / "causal", tiny_model(kind, architecture, **causal)), 0) is None
        )


def test_infinity_is_read_as_transformers_writes_it(tmp_path):
    """Mamba2 has it in time_step_limit, as an object in JSON."""
    from transformers import AutoModelForCausalLM

    folder = write_tiny(tmp_path, tiny_model("mamba2", "Mamba2ForCausalLM"))
    assert "__float__" in (tmp_path / "config.json").read_text()
    model = build_model(folder, None, 0)
    load_weights(model, folder, None)
    tokens = torch.randint(2, 60, (1, 9))
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()(input_ids=tokens).logits
        assert torch.equal(model.eval()(tokens), theirs)


def test_weights_that_only_longer_sequences_use_train(tmp_path, monkeypatch):
    """DeepSeek-V4 compresses the keys of each 4 or 128 tokens: in two tokens those weights have no gradient."""
    kinds = ["compressed_sparse_attention", "heavily_compressed_attention"]
    folder = write_tiny(tmp_path, tiny_model("deepseek_v4", "DeepseekV4ForCausalLM", layer_types=kinds))
    monkeypatch.setattr(folder_check, "read_folder", lambda path, source: folder)
    few, all_of_them = (used_on_meta(checked_folder(tmp_path, "option --model", n), None) for n in (2, 1024))
    frozen = {name for name in all_of_them - few if ".compressor." in name}
    assert {name.split(".")[2] for name in frozen} == {"0", "1"}


REFUSED = {
    "quantised inside": (lambda f: edit(f, text_config={"quantization_config": {"bits": 4}}), ["text_config.quantization_config"]),
    "layers that are dropped": (lambda f: edit(f, layerdrop=0.1), ["layerdrop: 0.1", "set it to 0"]),
    "NaN": (lambda f: edit(f, rms_norm_eps=float("nan")), ["rms_norm_eps: nan", "a number"]),
    "a kind of RoPE that is none": (
        lambda f: edit(f, rope_parameters=..., rope_scaling={"type": "mine", "factor": 4.0}), ["'mine'"]
    ),
    "a byte order mark": (lambda f: (f / "config.json").write_text("\ufeff{}"), ["config.json is not JSON", "BOM"]),
    "a comment": (lambda f: (f / "config.json").write_text("// mine\n{}"), ["config.json is not JSON"]),
    "two architectures": (lambda f: edit(f, architectures=["LlamaForCausalLM", "Mine"]), ["one architecture"]),
    "no model_type": (lambda f: edit(f, model_type=...), ["model_type None"]),
    "attention that is not installed": (lambda f: edit(f, _attn_implementation="flash_attention_2"), ["FlashAttention2"]),
    "generation of nonsense": (
        lambda f: (f / "generation_config.json").write_text('{"do_sample": false, "num_return_sequences": 4}'),
        ["generation_config.json is refused", "num_return_sequences"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_that_cannot_be_followed_is_refused_in_one_line(tmp_path, case):
    folder = write_language_model(tmp_path / "llama")
    change, words = REFUSED[case]
    change(folder)
    with pytest.raises(UserError) as error:
        checked_folder(folder, "option --model", None)
    for word in (*words, str(folder), "allowed: ", "fix: "):
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_an_image_model_with_another_loss_is_refused(tmp_path, problem):
    folder = write_vit(tmp_path / "vit")
    edit(folder, problem_type=problem)
    with pytest.raises(UserError, match=f"problem_type: '{problem}'; allowed: single_label_classification.*fix: "):
        read_folder(folder, "option --model")


def test_a_key_with_a_typing_error_is_named(tmp_path):
    folder = write_language_model(tmp_path / "llama")
    edit(folder, rms_norm_eps=..., rms_norm_epsilon=0.1, mine=1)
    (note,) = checked_folder(folder, "option --model", None).notes
    assert "config.json has rms_norm_epsilon, which changes nothing; rms_norm_eps is not there" in note


def test_the_language_model_of_a_model_with_images_has_the_inner_config(tmp_path):
    """As AutoModelForCausalLM: Qwen3.5's config holds the one of its language model."""
    from transformers import AutoModelForCausalLM, Qwen3_5ForCausalLM

    whole = tiny_config("qwen3_5", layer_types=["linear_attention", "full_attention"])
    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(whole.text_config).eval()
    folder = write_tiny(tmp_path, model)
    whole.architectures = ["Qwen3_5ForCausalLM"]
    whole.save_pretrained(tmp_path)
    folder = replace(folder, config=type(whole).get_config_dict(tmp_path)[0])
    ours = build_model(folder, None, 0)
    load_weights(ours, folder, None)
    tokens = torch.randint(2, 60, (1, 9))
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()(input_ids=tokens).logits
        assert torch.equal(ours.eval()(tokens), theirs)
