"""Small models that train in pipelines, their batches and their loss."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from algorun_train.models.gpt import GptSpec, build
from algorun_train.parallel.model.segments import SegmentSpec, TensorSpec

CLASSES, SIDE, CONTEXT, WIDTH = 7, 6, 5, 12


class Residual(nn.Module):
    """Convolutions and BatchNorm beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width, momentum=None)
        self.act1, self.act2 = nn.ReLU(inplace=True), nn.ReLU(inplace=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.act2(self.norm2(self.conv2(self.act1(self.norm1(self.conv1(images))))) + images)


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(*(Residual(8) for _ in range(3)))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(torch.relu(self.norm(self.stem(images)))).mean(dim=(2, 3)))


class Turned(nn.Module):
    """Mixes the rows; neither its output nor the gradient of its input is contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, square: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mix(square.transpose(1, 2))).transpose(1, 2)


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(*(Turned() for _ in range(5))), nn.Linear(WIDTH, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(rows[:, :, None] * rows[:, None, :]).mean(dim=2))


class Thrice(nn.Module):
    """The first, a middle and the last of its layers have one weight, in the last transposed; so has the head, frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(8))
        self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks[4][0].weight = self.blocks[0][0].weight
        self.blocks[5][0].bias = self.blocks[0][0].bias  # not in all stages that the weight is in
        self.head.weight = self.blocks[1][0].weight
        self.head.weight.requires_grad_(False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            rows = torch.tanh(block(rows))
        return self.head(functional.linear(self.out(rows), self.blocks[0][0].weight.t()))[:, :CLASSES]


def layered() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh()) for _ in range(7)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def in_place() -> nn.Sequential:
    """Stages begin by changing what they have received."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.ELU(inplace=True), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(6)]
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers, nn.Linear(WIDTH, CLASSES))


def bare() -> nn.Sequential:
    """With one layer in each stage, the second one has no weight."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES))


class ByHand:
    """A `Cutting` that somebody wrote for a model of his own: one segment for each layer."""

    def __init__(self, model: nn.Sequential, example: torch.Tensor) -> None:
        self._model, self.example = model, (example,)
        rows = len(example)
        self.segments = tuple(
            SegmentSpec(
                str(number), (str(number),), tuple(f"{number}.{name}" for name, _ in layer.named_parameters()),
                (TensorSpec((rows, WIDTH), torch.float32),),
            )
            for number, layer in enumerate(model)
        )  # fmt: skip
        self.output = (TensorSpec((rows, CLASSES), torch.float32),)

    def stage(self, begin: int, end: int, change: object = None) -> nn.Module:
        stage = nn.Sequential()
        for number in range(begin, end):
            stage.add_module(str(number), self._model[number])
        return stage


def made(kind: str) -> nn.Module:
    """The whole model, equal at each call."""
    if kind in ("gpt", "tied gpt"):
        tied = kind == "tied gpt"
        spec = GptSpec(vocabulary=CLASSES, context=CONTEXT, width=WIDTH, depth=4, heads=2, tied=tied)
        model: nn.Module = build(spec, seed=0)
        for parameter in model.parameters():  # the small ones of GPT-2 would hide differences
            parameter.data.mul_(5)
        return model
    torch.manual_seed(0)
    return {
        "convnet": Convnet,
        "squares": Squares,
        "thrice": Thrice,
        "hand": layered,
        "bare": bare,
        "in place": in_place,
    }[kind]()


def batch(kind: str, samples: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of step `number`."""
    random = torch.Generator().manual_seed(number)
    if kind in ("gpt", "tied gpt"):
        tokens = torch.randint(CLASSES, (samples, CONTEXT + 1), generator=random)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    shape = (samples, 3, SIDE, SIDE) if kind == "convnet" else (samples, WIDTH)
    return torch.randn(shape, generator=random), torch.randint(CLASSES, (samples,), generator=random)


def loss_of(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, -2).float(), labels.flatten())


def score(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.stack([loss_of(output, labels), (output.argmax(-1) == labels).sum().float()])


def tuned(parameters: Any) -> torch.optim.Optimizer:
    """Not Adam: it makes whole steps of gradients that are zero but for rounding (those of attention's key bias)."""
    return torch.optim.SGD([{"params": list(parameters)}], lr=0.05, momentum=0.9)  # a stage may have none
