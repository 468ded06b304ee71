"""Vision transformer (Dosovitskiy et al. 2020), pre-norm, with mean pooling in place of a class token (Beyer et al. 2022)."""

import torch
from torch import nn
from torch.nn import functional

from .image_spec import ModelSpec
from .transformer import Block

HIDDEN = 2  # width of the MLP as a multiple of the model's; the paper's 4 is for far larger data sets than the digits
STEM = 32  # channels of the first convolution


class Patches(nn.Module):
    """Images [B, 3, S, S] to tokens [B, N, W]: a 3 x 3 convolution, one linear map per patch, a learned position.

    The convolution ("Early convolutions help transformers see better", Xiao et al. 2021) halves the number of epochs that
    the embedded digits need.
    """

    def __init__(self, image_size: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, STEM, 3, padding=1)
        self.project = nn.Conv2d(STEM, width, patch_size, stride=patch_size)
        self.position = nn.Parameter(torch.empty(1, (image_size // patch_size) ** 2, width))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches: torch.Tensor = self.project(functional.gelu(self.stem(images)))
        return patches.flatten(2).transpose(1, 2) + self.position


class ViT(nn.Module):
    """Patches, blocks, the mean over all tokens, a linear `head`."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.patches = Patches(spec.image_size, spec.patch_size, spec.width)
        self.blocks = nn.Sequential(*(Block(spec.width, spec.heads, HIDDEN, spec.dropout) for _ in range(spec.depth)))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.classes)
        for name, parameter in self.named_parameters():
            if name.endswith("position"):
                nn.init.normal_(parameter)  # as large as the content: the mean over tokens does not see positions
            elif parameter.dim() > 1:
                nn.init.trunc_normal_(parameter, std=parameter[0].numel() ** -0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.patches(images))).mean(dim=1))
        return logits
