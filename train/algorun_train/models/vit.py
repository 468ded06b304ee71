"""Vision transformer (Dosovitskiy et al. 2020), pre-norm; mean pooling for a class token (Beyer et al. 2022)."""

import torch
from torch import nn
from torch.nn import functional

from .transformer import Block

HIDDEN = 2  # width of the MLP over the model's; the paper's 4 is for data sets far larger than the embedded one
STEM = 32  # channels of the first convolution


class Patches(nn.Module):
    """Images [B, 3, S, S] to tokens [B, N, W]: a 3 x 3 convolution, one linear map per patch, a learned position.

    Without the convolution ("Early convolutions help transformers see better", Xiao et al. 2021) the vit needs twice
    the epochs on the embedded digits.
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
    """Patches, blocks, mean over tokens, a linear `head`."""

    def __init__(
        self, classes: int, image_size: int, patch_size: int, width: int, depth: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.patches = Patches(image_size, patch_size, width)
        self.blocks = nn.Sequential(*(Block(width, heads, HIDDEN, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        for name, parameter in self.named_parameters():
            if name.endswith("position"):
                nn.init.normal_(parameter)  # as strong as the content: a mean over tokens tells no positions apart
            elif parameter.dim() > 1:
                nn.init.trunc_normal_(parameter, std=parameter[0].numel() ** -0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.patches(images))).mean(dim=1))
        return logits
