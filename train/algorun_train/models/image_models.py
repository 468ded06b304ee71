"""The architectures, built from a `ModelSpec`, which is also what checkpoints and artifacts remember."""

from dataclasses import asdict, dataclass

import torch
from torch import nn

from algorun_train.errors import UserError
from algorun_train.options.job_options import DdpJobOptions, PipelineJobOptions

from .convnet import ConvNet
from .vit import ViT

SMALL_SIDE = 32  # below this a patch is a quarter of the side (4 x 4 patches), from it on an eighth (8 x 8)
WIDTHS = {"vit": 64, "convnet": 32}
DEPTHS = {"vit": 4, "convnet": 3}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that decides the shapes of a model's weights."""

    model: str
    classes: int
    image_size: int
    patch_size: int
    width: int
    depth: int
    heads: int
    dropout: float

    def as_dict(self) -> dict[str, str | int | float]:
        return asdict(self)


def specify(config: DdpJobOptions | PipelineJobOptions, classes: int, side: int) -> ModelSpec:
    """The model of a configuration for images of side `side`. UserError where sizes do not fit each other."""
    width = config.width or WIDTHS[config.model]
    wanted = max(side // (4 if side < SMALL_SIDE else 8), 1)
    patch = config.patch_size or next(size for size in range(wanted, 0, -1) if side % size == 0)
    if config.model == "vit" and side % patch:
        fits = ", ".join(str(n) for n in range(1, side + 1) if side % n == 0)
        raise UserError(
            f"option --patch-size: {patch} does not divide the image size {side}; allowed: {fits}; "
            "fix: choose one of them, or another --image-size"
        )
    if config.model == "vit" and width % config.heads:
        fits = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
        raise UserError(
            f"option --heads: {config.heads} does not divide the width {width}; allowed: {fits}; fix: use one"
        )
    if config.model == "convnet" and width % ConvNet.GROUPS:
        raise UserError(
            f"option --width: {width} for the convnet; allowed: multiples of {ConvNet.GROUPS}; fix: use one"
        )
    depth = config.depth or DEPTHS[config.model]
    return ModelSpec(config.model, classes, side, patch, width, depth, config.heads, config.dropout)


def build(spec: ModelSpec, seed: int) -> nn.Module:
    """A model with weights drawn from `seed`: images [B, 3, S, S] in, logits [B, classes] out."""
    torch.manual_seed(seed)
    if spec.model == "convnet":
        return ConvNet(spec.classes, spec.width, spec.depth, spec.dropout)
    return ViT(spec.classes, spec.image_size, spec.patch_size, spec.width, spec.depth, spec.heads, spec.dropout)
