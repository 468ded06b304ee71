"""Weights of folders, beside transformers: the same logits, or one line about the file and the fix."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from algorun_train.common.errors import UserError
from algorun_train.models.folder_check import checked_folder
from algorun_train.models.folder_model import build_model, load_weights, prepare_transformers, write_folder
from tests.train.model_folders import write_language_model
from tests.train.training_runs import TRANSFORMERS, load_once

load_once(*TRANSFORMERS, "tokenizers")
prepare_transformers()
FILE, INDEX, BIN = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123\n"


def edit(folder, **changes):
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def tensors(folder):
    return load_file(folder / FILE)


def save(folder, weights, name=FILE, form="pt"):
    save_file({key: value.contiguous() for key, value in weights.items()}, folder / name, metadata={"format": form})


def changed(folder, **changes):
    save(folder, tensors(folder) | changes)


def without(folder, *names):
    save(folder, {name: tensor for name, tensor in tensors(folder).items() if name not in names})


def in_two(folder, weights, pattern="model-0000{}-of-00002.safetensors", index=INDEX, write=save):
    names = list(weights)
    half = len(names) // 2
    for number, part in enumerate((names[:half], names[half:]), 1):
        write(folder, {name: weights[name] for name in part}, pattern.format(number))
    places = {name: pattern.format(1 if name in names[:half] else 2) for name in names}
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def older_index_beside(folder):
    in_two(folder, {name: torch.randn_like(tensor) for name, tensor in tensors(folder).items()})


def only_two_files(folder):
    in_two(folder, tensors(folder))
    (folder / FILE).unlink()


def a_tensor_twice(folder):
    only_two_files(folder)
    first, second = (folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    name, tensor = next(iter(load_file(first).items()))
    save(folder, load_file(second) | {name: tensor + 1}, second.name)


def torch_save(folder, weights, name=BIN):
    torch.save(weights, folder / name)


def as_bin(folder, weights):
    torch_save(folder, weights)
    (folder / FILE).unlink()


def bin_in_two(folder):
    in_two(folder, tensors(folder), "pytorch_model-0000{}-of-00002.bin", f"{BIN}.index.json", torch_save)
    (folder / FILE).unlink()


def tied_in_bin(folder):
    as_bin(folder, tensors(folder))
    edit(folder, tie_word_embeddings=True)


def equal_heads(folder):
    changed(folder, **{"lm_head.weight": tensors(folder)["model.embed_tokens.weight"].clone()})
    edit(folder, tie_word_embeddings=True)


def only_the_head(folder):
    without(folder, "model.embed_tokens.weight")
    edit(folder, tie_word_embeddings=True)


def base_model_only_tied(folder):
    """Names without `model.`, as those of a model that was saved without its head."""
    base = {name.removeprefix("model."): tensor for name, tensor in tensors(folder).items() if name != "lm_head.weight"}
    save(folder, base)
    edit(folder, tie_word_embeddings=True)


EQUAL = {
    "tied, two matrices": lambda f: edit(f, tie_word_embeddings=True),
    "tied, two matrices in .bin": tied_in_bin,
    "tied, equal matrices": equal_heads,
    "tied, the head only": only_the_head,
    "tied, names without prefix": base_model_only_tied,
    "an older index beside": older_index_beside,
    "two files": only_two_files,
    "a tensor in both files": a_tensor_twice,
    "two .bin": bin_in_two,
    "a .bin beside": lambda f: torch_save(f, {name: tensor * 2 for name, tensor in tensors(f).items()}),
    "bfloat16": lambda f: save(f, {name: tensor.bfloat16() for name, tensor in tensors(f).items()}),
    "float16, half of them": lambda f: changed(f, **{"model.norm.weight": tensors(f)["model.norm.weight"].half()}),
    "format tf": lambda f: save(f, tensors(f), form="tf"),
    "fewer layers than the file": lambda f: edit(f, num_hidden_layers=1),
    "dtype and torch_dtype": lambda f: edit(f, dtype="bfloat16", torch_dtype="float16"),
    "rope_scaling, old": lambda f: edit(
        f, rope_parameters=..., rope_theta=500.0, rope_scaling={"type": "linear", "factor": 4.0}
    ),
    "rope_scaling, yarn": lambda f: edit(
        f, rope_parameters=..., rope_theta=500.0,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    ),
    "generation by the config": lambda f: edit(f, temperature=0.5, do_sample=False, num_return_sequences=3),
    "generation that cannot be saved": lambda f: (f / "generation_config.json").write_text(
        json.dumps({"temperature": 0.9, "do_sample": False})
    ),
}  # fmt: skip


def ours_of(folder):
    found = checked_folder(folder, "option --model", None)
    model = build_model(found, None, 0)
    line = load_weights(model, found, None, 0)
    return found, model.eval(), line


@pytest.mark.parametrize("case", EQUAL)
def test_a_folder_has_the_logits_and_the_loss_of_from_pretrained_before_and_after(tmp_path, case):
    from transformers import AutoModelForCausalLM

    folder = write_language_model(tmp_path / "llama", context=64)
    EQUAL[case](folder)
    tokens = torch.randint(2, 280, (2, 40), generator=torch.Generator().manual_seed(3))
    found, model, line = ours_of(folder)
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(
            input_ids=tokens, labels=tokens
        )
        logits = model(tokens)
        assert torch.equal(logits, theirs.logits)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        assert float(loss) == pytest.approx(float(theirs.loss), rel=1e-6)
        written = write_folder(found, None, model.state_dict(), tmp_path / "out")
        again, report = AutoModelForCausalLM.from_pretrained(written, dtype=torch.float32, output_loading_info=True)
        assert not report["missing_keys"]
        assert torch.equal(again.eval()(input_ids=tokens).logits, logits)
    assert ("differ in" in " ".join(found.notes)) == ("two matrices" in case)
    assert ("not read: " in line) == ("beside" in case)


def partly_tied(folder):
    """A BERT whose output matrix and input matrix differ, while its bias is tied and in the file once."""
    from transformers import BertConfig, BertLMHeadModel

    model = BertLMHeadModel(BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                       intermediate_size=16, is_decoder=True))  # fmt: skip
    model.save_pretrained(folder)
    weights = tensors(folder)
    embedding, bias = weights["bert.embeddings.word_embeddings.weight"], weights["cls.predictions.bias"]
    save(
        folder,
        weights | {"cls.predictions.decoder.weight": embedding + 1, "cls.predictions.decoder.bias": bias.clone()},
    )


def missing_shard(folder):
    only_two_files(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def pickled(folder):
    from transformers import AutoModelForCausalLM

    as_bin(folder, AutoModelForCausalLM.from_pretrained(folder))


def moved(folder, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / FILE).rename(folder / name)


def outside(folder):
    (folder / FILE).rename(folder.parent / "x.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": "../x.safetensors"}}))


def as_link(folder):
    (folder / FILE).unlink()
    (folder / FILE).symlink_to("blobs/0")


UP = "model.layers.0.mlp.up_proj.weight"
REFUSED = {
    "partly tied": (partly_tied, ["cls.predictions.decoder.weight", "differ in model.safetensors", "tie_word_embeddings to false"]),
    "untied, one matrix": (lambda f: without(f, "lm_head.weight"), ["lm_head.weight is missing", "set tie_word_embeddings to true"]),
    "a weight is missing": (lambda f: without(f, UP), [f"{UP} is missing"]),
    "a shard is missing": (missing_shard, ["model-00002-of-00002.safetensors is not there", "lists it"]),
    "an index without a map": (lambda f: (moved(f, "a.safetensors"), (f / INDEX).write_text("{}")), ["has no weight_map"]),
    "an index that leaves the folder": (outside, ["lists '../x.safetensors'"]),
    "module.": (
        lambda f: save(f, {f"module.{n}": t for n, t in tensors(f).items()}), ["is missing and 18 more", "remove the prefix 'module.'"]
    ),
    "_orig_mod.": (lambda f: save(f, {f"_orig_mod.{n}": t for n, t in tensors(f).items()}), ["remove the prefix '_orig_mod.'"]),
    "an adapter only": (
        lambda f: (moved(f, "adapter_model.safetensors"), (f / "adapter_config.json").write_text("{}")),
        ["adapter_config.json: the folder has an adapter of peft"],
    ),
    "an adapter beside": (lambda f: (f / "adapter_config.json").write_text("{}"), ["an adapter of peft", "merge_and_unload"]),
    "a pointer of Git LFS": (lambda f: (f / FILE).write_text(POINTER), [f"{FILE} is a pointer of Git LFS", "git lfs pull"]),
    "a pointer of Git LFS, .bin": (
        lambda f: (as_bin(f, {}), (f / BIN).write_text(POINTER)), [f"{BIN} is a pointer of Git LFS"]
    ),
    "a tokenizer's pointer": (lambda f: (f / "tokenizer.json").write_text(POINTER), ["tokenizer.json is a pointer of Git LFS"]),
    "an empty file": (lambda f: (f / FILE).write_bytes(b""), ["is empty (0 bytes)"]),
    "a web page": (lambda f: (f / FILE).write_text("<!DOCTYPE html>"), ["is a web page"]),
    "a folder of that name": (lambda f: ((f / FILE).unlink(), (f / FILE).mkdir()), [f"{FILE} is a folder"]),
    "a link to nothing": (as_link, [f"{FILE} is a link to nothing"]),
    "cut short": (lambda f: (f / FILE).write_bytes((f / FILE).read_bytes()[:-9]), ["cannot be read"]),
    "gguf": (lambda f: moved(f, "model.gguf"), ["model.gguf is not a name"]),
    "consolidated": (lambda f: moved(f, "consolidated.safetensors"), ["consolidated.safetensors is not a name"]),
    "a variant": (lambda f: moved(f, "model.fp16.safetensors"), ["model.fp16.safetensors is not a name"]),
    "in a folder below": (lambda f: moved(f, f"checkpoint-9/{FILE}"), ["no weights, but checkpoint-9/model.safetensors"]),
    "by another key": (lambda f: edit(f, transformers_weights="a.safetensors"), ["has transformers_weights 'a.safetensors'"]),
    "a whole object": (pickled, [f"{BIN} holds other objects than tensors"]),
    "NaN": (lambda f: changed(f, **{UP: tensors(f)[UP] * float("nan")}), [UP, "1536 of 1536 values are NaN or infinite"]),
    "NaN in .bin": (lambda f: as_bin(f, tensors(f) | {UP: tensors(f)[UP] / 0}), [UP, "1536 of 1536 values are NaN or infinite"]),
    "float8": (lambda f: changed(f, **{UP: tensors(f)[UP].to(torch.float8_e4m3fn)}), [UP, "F8_E4M3, a quantised weight"]),
    "int8": (lambda f: changed(f, **{UP: tensors(f)[UP].to(torch.int8)}), [UP, "I8, a quantised weight"]),
    "int64": (lambda f: changed(f, **{UP: tensors(f)[UP].long()}), [UP, "I64, no floating-point number"]),
    "bool": (lambda f: changed(f, **{UP: tensors(f)[UP] > 0}), [UP, "BOOL, no floating-point number"]),
    "complex": (lambda f: changed(f, **{UP: tensors(f)[UP].to(torch.complex64)}), [UP, "C64, no floating-point number"]),
    "int8 in .bin": (lambda f: as_bin(f, tensors(f) | {UP: tensors(f)[UP].to(torch.int8)}), [UP, BIN, "I8, a quantised weight"]),
    "int32 in .bin": (lambda f: as_bin(f, tensors(f) | {UP: tensors(f)[UP].int()}), [UP, BIN, "int32, no floating-point number"]),
    "a text for a number": (lambda f: edit(f, num_attention_heads="4"), ["config.json cannot be used", "num_attention_heads", "expected int, got str (value: '4')"]),
    "other sizes": (lambda f: edit(f, intermediate_size=64), ["is [48, 32], config.json asks for [64, 32]"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_floating_point_weights_of_any_size_are_read(tmp_path, kind):
    folder = write_language_model(tmp_path / "llama")
    save(folder, {name: tensor.to(kind) for name, tensor in tensors(folder).items()})
    assert torch.equal(ours_of(folder)[1].model.state_dict()[UP], tensors(folder)[UP].float())


@pytest.mark.parametrize("case", REFUSED)
def test_weights_that_are_not_the_models_are_refused(tmp_path, case):
    folder = write_language_model(tmp_path / "llama")
    change, words = REFUSED[case]
    change(folder)
    with pytest.raises(UserError) as error:
        ours_of(folder)
    for word in (*words, str(folder), "allowed: ", "fix: "):
        assert word in str(error.value)
    assert "\n" not in str(error.value)
