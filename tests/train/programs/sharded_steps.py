"""One rank of four: steps of a sharded model beside those of one process on the whole batch. `sharded_steps.py`"""

import copy
import os
import sys
from collections.abc import Iterable

import torch

from algorun_train.data.batch import IGNORED, Batch
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models.image_models import build
from algorun_train.models.image_spec import ModelSpec
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.parallel.model import recompute
from algorun_train.parallel.shard.layer_units import layer_list, layer_units
from algorun_train.parallel.shard.sharded_model import make_mesh, shard
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import World, read_world

SPECS = {
    "vit": ModelSpec("vit", 10, 8, 2, 64, 2, 4, 0.0),
    "convnet": ModelSpec("convnet", 10, 8, 2, 32, 2, 4, 0.0),
    "wide": ModelSpec("vit", 12, 8, 2, 256, 3, 4, 0.0),
}
COUNTED = 13  # of 2 passes x 4 ranks x 2 samples: a short last step


def batches(ranks: int, rank: int, dtype: torch.dtype) -> list[Batch]:
    """Two passes. With one rank each of them has the samples of all four."""
    images = torch.randn(2, 4, 2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    labels = torch.arange(16).view(2, 4, 2) % 10
    labels[1, 2, 1], labels[1, 3] = IGNORED, IGNORED
    own = slice(rank, rank + 1) if ranks > 1 else slice(0, 4)
    made = [Batch(images[p, own].flatten(0, 1), labels[p, own].flatten(), 0) for p in range(2)]
    return [Batch(b.inputs, b.labels, int((b.labels != IGNORED).sum())) for b in made]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def held(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes that these tensors keep allocated on this rank; gradients of a unit share their memory."""
    own = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in own}
    return sum(storages.values())


class Seen:
    """What an optimizer's step has found: the gradients, and then the weights that it leaves."""

    def __init__(self, stepper: DataParallelSteps) -> None:
        self.gradients: dict[str, torch.Tensor] = {}
        self.bytes = 0
        self._stepper = stepper
        stepper.optimizer.register_step_pre_hook(lambda *_: self._look())

    def _look(self) -> None:
        named = self._stepper.model.named_parameters()
        found = {name: p.grad for name, p in named if p.grad is not None}
        self.bytes = held(found.values())
        self.gradients = {name: whole(gradient).clone() for name, gradient in found.items()}


def farthest(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """The largest distance of two tensors of a name, as a share of the tensor's norm."""
    assert one.keys() == two.keys()
    return max(((one[n] - two[n]).norm() / two[n].norm().clamp_min(1e-6)).item() for n in one)


def compare(comm: Communicator, words: str) -> dict[str, float]:
    degree, name, precision, clip, again, optimizer = words.split(",")
    shards, dtype = int(degree), torch.float64 if precision == "float64" else torch.float32
    half = "bf16" if precision == "bf16" else "fp32"
    options = DdpJobOptions(clip_norm=float(clip), precision=half, optimizer=optimizer)
    reference = build(SPECS[name], 0).to(dtype)
    model = copy.deepcopy(reference)
    if again == "again":
        for layer in layer_list(model):
            recompute.mark(layer, preserve_rng_state=True)
        recompute.in_place(model)
    shard(
        model,
        layer_units(model),
        make_mesh(comm.device, comm.rank, comm.size, shards),
        torch.bfloat16 if precision == "bf16" else None,
    )
    ours = ShardedSteps(model, build_optimizer(options, model.parameters()), comm, options)
    alone = Communicator(World(0, 1, 0, 1, False), comm.device)
    theirs = DataParallelSteps(reference, build_optimizer(options, reference.parameters()), alone, options)
    seen, expected, losses = Seen(ours), Seen(theirs), []
    for number in (1, 2):
        loss = ours.step(batches(comm.size, comm.rank, dtype), COUNTED, 0.001, number)
        right = theirs.step(batches(1, 0, dtype), COUNTED, 0.001, number)
        total = sum(row[0] for row in comm.exchange([loss.item()]))
        losses.append(abs(total - right.item()) / right.item())
        if number == 1:
            first = farthest(seen.gradients, expected.gradients)
    evaluated = [row[0] for row in comm.exchange([ours.evaluate(batches(4, comm.rank, dtype)[0])[0].item()])]
    right = theirs.evaluate(batches(1, 0, dtype)[0])[0].item()
    moments = [v for p in model.parameters() for v in ours.optimizer.state[p].values() if v.dim()]
    share = sum(p.numel() * p.element_size() for p in reference.parameters()) / shards
    weights = {n: whole(p.detach()) for n, p in model.named_parameters()}
    return {
        "loss": max(losses),
        "gradients": first,
        "weights": farthest(weights, {n: p.detach() for n, p in reference.named_parameters()}),
        "evaluation": abs(sum(evaluated) - right) / right,
        "parameters": held(model.parameters()) / share,
        "held_gradients": seen.bytes / share,
        "moments": held(moments) / 2 / share,  # SGD has one
    }


def main() -> None:
    with joined(read_world(os.environ)) as comm:
        for words in sys.argv[1:]:
            found = compare(comm, words)
            rows = comm.gather(found)
            worst = {key: max(row[key] for row in rows) for key in found}
            comm.say(f"{words} " + " ".join(f"{key}={value:.3e}" for key, value in worst.items()))


main()
