"""Makes FOLDER/model, a Llama of random weights as a Hugging Face folder, and FOLDER/train and FOLDER/val, its text.

A token is a byte. The text is of random words, so that its loss has a floor; `train` has STEPS x BATCH sequences. Prints
the number of weights and, on a GPU, the bytes that one forward pass of transformers' own model keeps for its backward pass.
"""

import argparse
import json
import os
import random
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BYTES, SPECIAL = 256, ["<s>", "</s>"]
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "old",
    "judges",
    "watch",
    "it",
    "from",
    "their",
    "garden",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("width", "inner", "depth", "heads", "kv-heads", "vocabulary", "context", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=args.width,
        intermediate_size=args.inner,
        num_hidden_layers=args.depth,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        vocab_size=args.vocabulary,
        max_position_embeddings=args.context,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(args.folder / "model")
    write_tokenizer(args.folder / "model")
    for name, sequences in (("train", args.steps * args.batch), ("val", args.batch)):
        (args.folder / name).mkdir()
        (args.folder / name / "text.txt").write_text(text(sequences * args.context, name))
    weights = sum(parameter.numel() for parameter in model.parameters())
    kept = kept_bytes(model, args.batch, args.context) if torch.cuda.is_available() else None
    print("made: " + json.dumps({"weights": weights, "kept_bytes": kept}))


def text(count: int, seed: str) -> str:
    draw = random.Random(seed)
    words = [draw.choice(WORDS) for _ in range(count)]
    return " ".join(words)[:count]


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = BYTES + len(SPECIAL)  # no room for a merge
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    begin, end = SPECIAL
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end).save_pretrained(folder)


def kept_bytes(model: torch.nn.Module, batch: int, context: int) -> int:
    """What the allocator holds between a forward pass in bf16 and its backward pass, with the loss in fp32 as ddp has it."""
    model.cuda().train()
    tokens = torch.randint(BYTES, (batch, context), device="cuda")
    for _ in range(2):  # the first pass also takes what libraries keep for themselves
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=tokens, use_cache=False).logits
            loss = functional.cross_entropy(logits.float().flatten(0, -2), tokens.flatten(), reduction="sum")
        del logits
        kept = torch.cuda.memory_allocated() - before
        del loss
    return kept


if __name__ == "__main__":
    main()
