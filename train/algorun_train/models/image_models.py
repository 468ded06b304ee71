"""The image classifiers. A `ModelSpec` describes one; checkpoints and artifacts keep it."""

import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.options.job_options import ModelJobOptions

from .convnet import ConvNet
from .image_spec import ModelSpec
from .vit import ViT

SMALL_SIDE = 32  # smaller images are divided into 4 x 4 patches, others into 8 x 8
WIDTHS = {"vit": 64, "convnet": 32}
DEPTHS = {"vit": 4, "convnet": 3}


def specify(config: ModelJobOptions, classes: int, side: int) -> ModelSpec:
    """The model that the options ask for, for images of `side` x `side`. Raises UserError if sizes do not fit each other."""
    model = config.model or "vit"
    width = config.width or WIDTHS[model]
    wanted = max(side // (4 if side < SMALL_SIDE else 8), 1)
    patch = config.patch_size or next(size for size in range(wanted, 0, -1) if side % size == 0)
    if model == "vit" and side % patch:
        fits = ", ".join(str(n) for n in range(1, side + 1) if side % n == 0)
        raise UserError(
            f"option --patch-size: {patch} does not divide the image size {side}; allowed: {fits}; "
            "fix: choose one of them, or another --image-size"
        )
    if model == "vit" and width % config.heads:
        fits = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
        raise UserError(
            f"option --heads: {config.heads} does not divide the width {width}; allowed: {fits}; fix: use one"
        )
    if model == "convnet" and width % ConvNet.GROUPS:
        raise UserError(
            f"option --width: {width} for the convnet; allowed: multiples of {ConvNet.GROUPS}; fix: use one"
        )
    depth = config.depth or DEPTHS[model]
    return ModelSpec(model, classes, side, patch, width, depth, config.heads, config.dropout)


def build(spec: ModelSpec, seed: int) -> nn.Module:
    """Builds the model with weights drawn from `seed`: images [B, 3, S, S] to logits [B, classes]."""
    torch.manual_seed(seed)
    if spec.model == "convnet":
        return ConvNet(spec)
    return ViT(spec)
