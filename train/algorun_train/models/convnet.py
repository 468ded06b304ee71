"""A small residual convnet (He et al. 2015) with GroupNorm (Wu, He 2018): batch statistics would make the result depend
on how a global batch is cut up between ranks."""

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut; halves the side when `stride` is 2."""

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
    """A stem, `depth` residual blocks (each after the first halves the side and doubles the width, up to 8 times),
    mean over positions, a linear `head`."""

    GROUPS = 8

    def __init__(self, classes: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(self.GROUPS, width)
        widths = [width * min(2**i, 8) for i in range(depth)]
        self.blocks = nn.Sequential(
            *(
                Residual(inputs, outputs, 1 if i == 0 else 2, self.GROUPS)
                for i, (inputs, outputs) in enumerate(zip([width, *widths], widths, strict=False))
            )
        )
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.blocks(functional.relu(self.norm(self.stem(images))))
        logits: torch.Tensor = self.head(self.drop(features.mean(dim=(2, 3))))
        return logits
