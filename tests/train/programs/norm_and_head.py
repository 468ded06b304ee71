"""One rank of two: gradient norms of a model whose head is called on its own, as an action of a pipeline calls it.

Prints for each way to shard norm and head the norm of the second step's gradients: `units=` by `layer_units`, `grouped=` with
norm and head in one unit, `alone=` without sharding.
"""

import math
import os
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import ShardMesh, make_mesh, shard
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

INPUTS = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


class Body(nn.Module):
    """Layers and a norm; its forward ends before the head, as that of a stage which another action goes on from."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs).tanh()
        return cast(torch.Tensor, self.norm(inputs))


def made(how: str, mesh: ShardMesh) -> Body:
    torch.manual_seed(0)
    model = Body()
    if how == "units":
        shard(model, layer_units(model), mesh, half=None)
    if how == "grouped":
        for unit in (*model.layers, [model.norm, model.head], model):
            fully_shard(unit, mesh=mesh.mesh, reshard_after_forward=True)
    return model


def loss(logits: torch.Tensor) -> torch.Tensor:
    return logits.logsumexp(-1).square().mean()


def backward(model: Body) -> None:
    """Four actions: forward passes of body and head, then their backward passes."""
    hidden = model(INPUTS)
    given = hidden.detach().requires_grad_()
    loss(model.head(given)).backward()
    hidden.backward(given.grad)


def second_norm(model: Body) -> float:
    """The norm of all gradients of the second step; the head's loss is looked at before the first one changes the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    backward(model)
    with torch.no_grad():
        loss(model.head(model(INPUTS)))
    optimizer.step()
    optimizer.zero_grad()
    backward(model)
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    return (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item()


def norm_or_nan(how: str, mesh: ShardMesh) -> float:
    try:
        return second_norm(made(how, mesh))
    except RuntimeError as error:
        if how != "grouped" or "not allocated" not in str(error):
            raise
        return math.nan  # torch 2.10 notices that the unit's weights are gone; later releases compute with old ones


with joined(read_world(os.environ)) as comm:
    mesh = make_mesh(comm.device, comm.rank, comm.size, comm.size)
    comm.say(" ".join(f"{how}={norm_or_nan(how, mesh):.6f}" for how in ("alone", "units", "grouped")))
