"""`make demo-lm`: a small Llama learns Python's documentation from nothing, sharded over 2 hosts x 2 ranks.

The text is what every Python brings along: the language reference behind `help()`, and the docstrings of the standard
library. A tokenizer and a Llama with random weights are made here and saved as a Hugging Face folder. `ddp` trains it
as two replicas of two shards. Then transformers alone loads the folder that was written, computes its loss on the same
held-out text, and continues a sentence, as it did before the training. Nothing is downloaded.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

OUT = Path("algorun-simulate/demo-lm")
START, TRAINED = OUT / "llama", OUT / "algo-1/model"
VOCABULARY, CONTEXT, SEED = 2048, 128, 0
HELD_OUT = 20  # every 20th document is for validation
ENOUGH = 0.65  # the loss at the end, as a share of the loss before the training
ALIKE = 1e-3  # between ddp's loss on held-out text and that of transformers, on other ranks in another order
BEGINNINGS = ("Return True if", "The assignment statement", "Raises ValueError")
TRAIN = [
    *("--shard", "2", "--context", str(CONTEXT), "--batch-size", "4", "--epochs", "3", "--lr", "0.004"),
    *("--gamma", "0.7", "--warmup-epochs", "0.1", "--clip-norm", "1", "--log-interval", "10"),
]


def documents() -> Iterator[str]:
    """The language reference, then the docstrings of each single-file module of the standard library."""
    yield from topics.values()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        nodes = ast.walk(ast.parse(path.read_bytes()))
        found = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
        if text := "\n\n".join(each for each in found if each):
            yield text


def write_channels(texts: list[str]) -> None:
    for number, text in enumerate(texts):
        folder = OUT / ("validation" if number % HELD_OUT == HELD_OUT - 1 else "train")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04d}.txt").write_text(text, encoding="utf-8")


def write_model(texts: list[str]) -> int:
    """Saves a tokenizer that has learned from `texts` and a Llama with random weights; returns its number of weights."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(START)
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=None, eos_token_id=0, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(START)
    return model.num_parameters()


def samples(folder: Path) -> None:
    """Prints what the model of a folder writes behind some beginnings."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(SEED)
    for beginning in BEGINNINGS:
        inputs = tokenizer(beginning, return_tensors="pt", return_token_type_ids=False)
        tokens = model.generate(**inputs, max_new_tokens=40, do_sample=True, temperature=0.7, top_k=50)
        print(f"  > {' '.join(tokenizer.decode(tokens[0], skip_special_tokens=True).split())}")


@torch.inference_mode()
def held_out_loss(folder: Path) -> float:
    """The mean loss of a folder's model over all tokens of the held-out text, computed with transformers alone."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    end = tokenizer.eos_token_id
    stream = [end]
    for path in sorted((OUT / "validation").iterdir()):
        stream += [*tokenizer(path.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"], end]
    inputs, labels = torch.tensor(stream[:-1]), torch.tensor(stream[1:])
    total = 0.0
    for tokens, nexts in zip(inputs.split(CONTEXT), labels.split(CONTEXT), strict=True):
        total += float(cross_entropy(model(tokens[None]).logits[0], nexts, reduction="sum"))
    return total / len(labels)


def train() -> None:
    algorun = Path(sys.executable).with_name("algorun")
    channels = [f"--channel={name}={OUT / name}" for name in ("train", "validation")]
    subprocess.run(
        [algorun, "simulate", "-j", "2x2", "--out", OUT, *channels, f"--channel=model={START}", "ddp", *TRAIN],
        check=True,
    )


def main() -> int:
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.disable_progress_bar()
    shutil.rmtree(OUT, ignore_errors=True)
    texts = list(documents())
    write_channels(texts)
    print(f"=== {len(texts)} documents, {sum(map(len, texts)) / 1e6:.1f} million characters", flush=True)
    weights = write_model(texts)
    before = held_out_loss(START)
    print(
        f"=== {START}: a Llama of {weights / 1e6:.2f} million random weights, loss {before:.4f}. It writes:", flush=True
    )
    samples(START)
    print("=== two replicas of two shards on two hosts", flush=True)
    train()
    told = json.loads((TRAINED / "model.json").read_text())
    after = held_out_loss(TRAINED)
    print(
        f"=== {TRAINED}: transformers reads it, loss {after:.4f} (ddp says {told['val_loss']:.4f}). It writes:",
        flush=True,
    )
    samples(TRAINED)
    subprocess.run([Path(sys.executable).with_name("algorun"), "report", OUT], check=True)
    print(f"loss {before:.3f} -> {after:.3f} ({after / before:.0%}); its curve: {OUT / 'report.html'}")
    if abs(after - told["val_loss"]) > ALIKE or after >= ENOUGH * before:
        print(f"expected: both losses within {ALIKE}, and below {ENOUGH:.0%} of the loss before", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
