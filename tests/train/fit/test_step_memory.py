"""The memory of a rank that is computed ahead, beside what torch's profiler sees in real ranks that make real steps."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.model_folders import write_language_model, write_tokenizer, write_vit
from tests.train.tiny_models import tiny_model, write_tiny
from tests.train.training_runs import TRANSFORMERS, Ranks, clean_environ, load_once

load_once(*TRANSFORMERS, "torch.profiler", "transformers.models.vit.modeling_vit")
PROGRAM = str(Path(__file__).parents[1] / "programs" / "fit_memory.py")
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": 512}
TEXT = ("--context", "32", "--batch-size", "4")
ASKED = {"stages": 1, "tried": False}


def larger_vit(path: Path) -> Path:
    """The tests' own is so small that what a CPU's convolution allocates for itself counts."""
    from transformers import ViTConfig, ViTForImageClassification

    write_vit(path)
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
    ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=10)).save_pretrained(path)
    return path


def experts(path: Path) -> Path:
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 4, "vocab_size": 512}
    write_tiny(path, tiny_model("mixtral", "MixtralForCausalLM", **sizes))
    return write_tokenizer(path)


def whole_experts(path: Path) -> Path:
    write_tiny(path, tiny_model("gpt_oss", "GptOssForCausalLM", vocab_size=300))
    return write_tokenizer(path)


FOLDERS = {
    "llama": lambda path: write_language_model(path, **SIZES),
    "tied": lambda path: write_language_model(path, **SIZES, tie_word_embeddings=True),
    "gpt2": lambda path: write_language_model(path, "gpt2"),
    "vit": larger_vit,
    "mixtral": experts,
}
LAYOUTS = [(1, 1), (4, 1), (4, 2), (4, 4)]  # ranks, shards
WAYS = [("fp32", False), ("bf16", False), ("fp32", True), ("bf16", True)]  # precision, --recompute
SGD = ("--optimizer", "sgd", "--clip-norm", "1", "--accumulation", "2")
# Each model in each layout, and each model and each layout in each way.
ALL = [
    (kind, ranks, shards, *WAYS[(model + layout) % len(WAYS)], ())
    for model, kind in enumerate(FOLDERS)
    for layout, (ranks, shards) in enumerate(LAYOUTS)
] + [("llama", ranks, shards, "fp32", False, SGD) for ranks, shards in LAYOUTS[1:3]]
ALL += [("llama", 2, 1, "fp32", False, ("--tp", "2")), ("llama", 4, 2, "bf16", False, ("--tp", "2"))]
ALL += [("tied", 2, 1, "fp32", True, ("--tp", "2")), ("llama", 4, 1, "bf16", False, ("--tp", "2"))]
ALL += [("llama", 1, 1, "fp32", False, ("--lora", "8")), ("llama", 4, 4, "bf16", False, ("--lora", "8"))]
ALL += [("mixtral", 2, 1, "fp32", False, ("--tp", "2")), ("mixtral", 4, 2, "bf16", False, ("--tp", "2"))]
ALL += [("gpt2", 4, 2, "fp32", False, ("--lora", "8")), ("llama", 2, 1, "bf16", False, ("--tp", "2", "--lora", "8"))]


def computed(
    base: Path, folder: Path, layouts: list[tuple[int, str, bool]], *options: str, alone: bool = False
) -> subprocess.CompletedProcess[str]:
    keys = ("shards", "precision", "recompute")
    tensor = int(options[options.index("--tp") + 1]) if "--tp" in options else 1
    return subprocess.run(
        [sys.executable, "-m", "algorun_train.fit.fit", "ddp", "--model", str(folder), *options],
        input="".join(json.dumps({**ASKED, "tensor": tensor, "alone": alone, **dict(zip(keys, each, strict=True))}) + "\n" for each in layouts),
        capture_output=True, text=True, timeout=120, env=clean_environ(base / "base"),
    )  # fmt: skip


def rows(ended: subprocess.CompletedProcess[str]) -> list[dict[str, int]]:
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ranks", "shards", "precision", "again", "options"),
    ALL,
    ids=["-".join([*map(str, case[:5]), *(word.strip("-") for word in case[5])]) for case in ALL],
)
def test_a_rank_takes_what_was_computed(tmp_path, kind, ranks, shards, precision, again, options):
    """Gloo copies what it reduces, which NCCL does not: of shards that recompute that is up to a tenth of all."""
    folder = FOLDERS[kind](tmp_path / "model")
    options = (*(("--batch-size", "4") if kind == "vit" else TEXT), *options)
    alone = "--tp" in options and ranks == 2
    (row,) = rows(computed(tmp_path, folder, [(shards, precision, again)], *options, alone=alone))
    words = [str(shards), precision, str(again).lower(), "--model", str(folder), *options]
    run = Ranks(tmp_path / "ranks", 1, ranks, words, program=PROGRAM)
    try:
        assert run.codes() == [0] * ranks, run.text()
    finally:
        run.kill()
    measured = int(re.search(r"peak=(\d+)", run.text())[1])
    assert sum(row.values()) == pytest.approx(measured, rel=0.15 if again and shards > 1 else 0.1)


@pytest.mark.slow
def test_the_shares_of_a_rank_are_those_of_its_shards(tmp_path):
    folder = FOLDERS["llama"](tmp_path / "model")
    one, two, four = rows(
        computed(tmp_path, folder, [(1, "fp32", False), (2, "fp32", False), (4, "fp32", False)], *TEXT)
    )
    assert one["moments"] == pytest.approx(2 * one["weights"], rel=1e-3)
    for row, shards in ((two, 2), (four, 4)):
        assert row["weights"] == pytest.approx(one["weights"] / shards, rel=0.01)
        assert row["moments"] == pytest.approx(one["moments"] / shards, rel=0.01)


@pytest.mark.slow
def test_recompute_and_bf16_take_less(tmp_path):
    folder = FOLDERS["llama"](tmp_path / "model")
    plain, again, half = rows(
        computed(tmp_path, folder, [(4, "fp32", False), (4, "fp32", True), (4, "bf16", False)], *TEXT)
    )
    assert again["activations"] < plain["activations"]
    assert sum(half.values()) < sum(plain.values())


@pytest.mark.slow
def test_weights_are_not_read(tmp_path):
    folder = FOLDERS["llama"](tmp_path / "model")
    before = rows(computed(tmp_path, folder, [(1, "fp32", False)], *TEXT))
    for file in folder.glob("*.safetensors"):
        os.unlink(file)
    assert rows(computed(tmp_path, folder, [(1, "fp32", False)], *TEXT)) == before


REFUSED = {
    "whole experts": (whole_experts, (*TEXT, "--tp", "2"), "a step of GptOssForCausalLM cannot be made without memory"),
    "--compile": (FOLDERS["llama"], (*TEXT, "--compile", "True"), "option --compile: True"),
    "no part for each rank": (FOLDERS["llama"], (*TEXT, "--tp", "3"), "option --tp: 3: "),
    "no plan": (FOLDERS["gpt2"], (*TEXT, "--tp", "2"), "option --tp: 2: "),
    "nothing to adapt": (FOLDERS["llama"], (*TEXT, "--lora", "4", "--lora-targets", "x"), "option --lora-targets: 'x'"),
    "no folder": (lambda path: path / "none", TEXT, "option --model"),
    "embedded": (lambda path: Path("vit"), (), "option --model: vit; allowed: a folder"),
    "an unknown option": (FOLDERS["llama"], (*TEXT, "--no-such", "1"), "unknown option --no-such"),
    "too long": (FOLDERS["llama"], ("--context", "4096"), "option --context: 4096"),
}


# Each loads torch and transformers.
@pytest.mark.slow(but=["an unknown option"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_ahead_is_one_error(tmp_path, case):
    make, options, text = REFUSED[case]
    ended = computed(tmp_path, make(tmp_path / "model"), [(1, "fp32", False)], *options)
    assert ended.returncode == 64, ended.stderr
    assert ended.stderr.count("\n") == 1
    assert text in ended.stderr
    assert "fix: " in ended.stderr
