"""Hugging Face folders with tiny models of random weights, made here: nothing is downloaded."""

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
       "image_size": 16, "patch_size": 4}  # fmt: skip


def write_vit(folder: Path, weights: bool = True, classes: int = 10, base: bool = False, side: int = 16) -> Path:
    """A ViT with its image processor; `base`: without a head, as models are published after pre-training."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil, ViTModel

    torch.manual_seed(1)
    config = ViTConfig(**VIT, num_labels=classes)
    model = (ViTModel if base else ViTForImageClassification)(config)
    model.save_pretrained(folder)
    if not weights:
        (folder / "model.safetensors").unlink()
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.5]
    ViTImageProcessorPil(size={"height": side, "width": side}, image_mean=mean, image_std=std).save_pretrained(folder)
    return folder


def write_language_model(folder: Path, kind: str = "llama", context: int = 32, **changes: object) -> Path:
    """A Llama, a Qwen2 or a GPT-2 (tied weights) with a tokenizer that has learned from a few lines."""
    import torch
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    torch.manual_seed(1)
    model: torch.nn.Module
    if kind in ("llama", "qwen2"):
        sizes: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        sizes |= {"num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": context, "bos_token_id": 0}
        sizes |= {"eos_token_id": 1}
        sizes |= changes
        llama = kind == "llama"
        model = LlamaForCausalLM(LlamaConfig(**sizes)) if llama else Qwen2ForCausalLM(Qwen2Config(**sizes))
    else:
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=300, n_positions=context,
                                           bos_token_id=0, eos_token_id=1, **changes))  # fmt: skip
    model.save_pretrained(folder)
    return write_tokenizer(folder)


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer of 300 tokens that has learned from a few lines."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    return folder


LINES = [
    f"{a} {b} and {c}.\n" for a in ("one", "two", "three") for b in ("red", "green", "blue") for c in ("more", "less")
]


def write_text(folder: Path, lines: int = 300) -> Path:
    """A channel with one file of text."""
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("".join(LINES[i * i % len(LINES)] for i in range(lines)))
    return folder
