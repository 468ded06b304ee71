"""algorun.pipeline with models and batches of several kinds, beside the model itself; one JSON line for each rank."""

import json
import sys

import torch
from torch import nn
from torch.nn import functional

from algorun.pipeline import UserError, pipeline


class Two(nn.Module):
    """Two tensors in, one of them by name."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x, scale):
        return self.third(torch.relu(self.second(torch.relu(self.first(x)) * scale)))


class Drop(nn.Module):
    """What leaves the middle layer has as many rows as the data wants."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x)
        return self.third(self.second(x[x[:, 0] > 0]))


def refused(call, *args, **options):
    try:
        call(*args, **options)
    except UserError as error:
        return str(error)
    return "not refused"


def made(example, **options):
    torch.manual_seed(0)
    return pipeline(Two(), example, functional.cross_entropy, pp=2, microbatches=4, **options)


torch.manual_seed(0)
whole = Two()
x, scale, labels = torch.randn(8, 6), torch.rand(8, 8), torch.randint(0, 3, (8,))
for part in zip(x.chunk(4), scale.chunk(4), labels.chunk(4), strict=True):
    (functional.cross_entropy(whole(*part[:2]), part[2]) / 4).backward()
told = {"difference": []}
for batch, example in (((x, scale), (x[:2], scale[:2])), ({"x": x, "scale": scale}, {"x": x[:2], "scale": scale[:2]})):
    pipe = made(example)
    pipe.step(batch, labels)
    own = dict(whole.named_parameters())
    told["difference"] += [(p.grad - own[name].grad).abs().max().item() for name, p in pipe.named_parameters()]
layered = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)) for _ in range(4)))
by_layers = pipeline(layered, x[:2], functional.cross_entropy, pp=2, microbatches=4, by_layers=True)
told["layers"] = sorted({name.split(".")[0] for name, _ in by_layers.named_parameters()})
told["few layers"] = refused(
    pipeline, layered, x[:2], functional.cross_entropy, pp=2, microbatches=4, chunks=3, schedule="interleaved",
    by_layers=True,
)  # fmt: skip
told["targets"] = refused(pipe.step, batch, labels[:4])
told["batch"] = refused(pipe.step, {"x": x, "scale": scale[:4]}, labels)
told["rows"] = refused(made, (x[:2], scale[:1]))
told["precision"] = refused(made, (x[:2], scale[:2]), precision="fp17")
told["option"] = refused(made, (x[:2], scale[:2]), sched="1f1b")
torch.manual_seed(int(sys.argv[1]))
told["drop"] = refused(pipeline, Drop(), x[:2], functional.cross_entropy, pp=2, microbatches=4)
print(json.dumps(told))
