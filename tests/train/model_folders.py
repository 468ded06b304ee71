"""Hugging Face folders with tiny models of random weights, made here: nothing is downloaded."""

import os
from pathlib import Path

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
