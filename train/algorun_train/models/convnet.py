"""A small residual convnet (He et al. 2015) with GroupNorm (Wu, He 2018). BatchNorm would make the result depend on how ranks
share a global batch."""

import torch
from torch import nn
from torch.nn import functional

from .image_spec import ModelSpec


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut. Images [B, inputs, S, S] to [B, outputs, S / stride, S / stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.norm1(self.conv1(images)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(images))


class ConvNet(nn.Module):
    """A stem, `depth` residual blocks, the mean over all positions, a linear `head`.

    Each block after the first halves the side and doubles the width, up to 8 times the first width.
    """

    GROUPS = 8

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.width
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(self.GROUPS, width)
        widths = [width * min(2**i, 8) for i in range(spec.depth)]
        self.blocks = nn.Sequential(
            *(
                Residual(inputs, outputs, 1 if i == 0 else 2, self.GROUPS)
                for i, (inputs, outputs) in enumerate(zip([width, *widths], widths, strict=False))
            )
        )
        self.drop = nn.Dropout(spec.dropout)
        self.head = nn.Linear(widths[-1], spec.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.blocks(functional.relu(self.norm(self.stem(images))))
        logits: torch.Tensor = self.head(self.drop(features.mean(dim=(2, 3))))
        return logits
