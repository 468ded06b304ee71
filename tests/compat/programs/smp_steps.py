"""Four steps of a script for smdistributed.modelparallel, and the parameters of the same model without it.

Writes output/data/smp.json on rank 0: the largest difference of parameters and buffers, and what the step returned.
"""

import argparse
import collections
import json
import os
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

import smdistributed.modelparallel.torch as smp
from tests.train.parallel.model_zoo import library

BATCH, STEPS = 8, 4


class Counted(nn.Linear):
    """Counts its passes on this rank, those that compute activations again among them."""

    passes: ClassVar = collections.Counter()

    def forward(self, x):
        self.passes[self.out_features] += not x.is_meta
        return super().forward(x)


class Convnet(nn.Module):
    """The convnet of AWS's MNIST script, small."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 8, 3, bias=False)  # a bias has no gradient here, and Adam makes steps of noise
        self.norm = nn.BatchNorm2d(8)
        self.fc1, self.fc2 = Counted(8 * 5 * 5, 16), Counted(16, 12)
        self.last = nn.Sequential(nn.ReLU(), Counted(12, 10))

    def forward(self, x):
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(functional.relu(self.norm(self.conv2(x))), 2)
        x = functional.relu(self.fc1(torch.flatten(x, 1)))
        if options.checkpointing:  # fc1 is marked before the model is wrapped, these where they are called
            return functional.log_softmax(smp.checkpoint_sequential(self.last, smp.checkpoint(self.fc2, x)), dim=1)
        return functional.log_softmax(self.last(self.fc2(x)), dim=1)


class Named(nn.Module):
    """Keyword arguments, a mask that is a flag, and outputs in a dictionary, as in transformers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, inputs, *, weights=None, double=False):
        hidden = functional.relu(self.first(inputs))
        hidden = functional.relu(self.second(hidden)) * (2 if double else 1)
        logits = self.third(hidden * weights)
        return {"logits": logits, "hidden": hidden}


class Grouped(nn.Module):
    """Manual partition, as in AWS's guide."""

    def __init__(self, last):
        super().__init__()
        with smp.partition(0):
            self.first = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
        with smp.partition(last):
            self.second = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.second(self.first(x))


class Returning(nn.Module):
    """Calls of partitions 0, 1 and again 0, which is the default; made in another order than they are called in."""

    def __init__(self):
        super().__init__()
        with smp.partition(1):
            self.second = nn.Linear(16, 16)
        with smp.partition(0):
            self.first = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
        self.third = nn.Linear(16, 4)

    def forward(self, x):
        return self.third(functional.relu(self.second(self.first(x))))


class Nested(nn.Module):
    """Partitions within each other, as AWS's documentation of smp.partition has them."""

    def __init__(self):
        super().__init__()
        with smp.partition(1):
            self.child0 = nn.Linear(12, 16)
            with smp.partition(2):
                self.child1 = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
            self.child2 = nn.Linear(16, 16)
        self.child3 = nn.Linear(16, 4)  # of the default partition

    def forward(self, x):
        return self.child3(functional.relu(self.child2(self.child1(functional.relu(self.child0(x))))))


def linformer():
    """The book's vision transformer, small."""
    transformer = library("linformer").Linformer(dim=32, seq_len=5, depth=4, heads=2, k=4)  # 4 patches, 1 class token
    vit = library("vit_pytorch.efficient").ViT
    return vit(dim=32, image_size=14, patch_size=7, num_classes=4, channels=1, transformer=transformer)


def batches(seed):
    """A batch for each replica and step; the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(STEPS):
        size = BATCH // 2 if number == STEPS - 1 and options.model != "convnet" else BATCH  # what a loader has left
        yield [
            (torch.randn(size, 1, 14, 14, generator=generator), torch.randint(0, 4, (size,), generator=generator))
            for _ in range(smp.dp_size())
        ]


def call(name, model, images, flat):
    if name == "named":
        return model(flat[:, :12], weights=flat[:, 12:28], double=True)["logits"]
    return model(flat[:, :12]) if name in ("grouped", "returning", "nested") else model(images)


parser = argparse.ArgumentParser()
parser.add_argument("--model", default="convnet")
parser.add_argument("--no-average", action="store_true")
parser.add_argument("--every", type=int, default=1, help="steps per reduction and optimizer step")
parser.add_argument("--evaluated-first", action="store_true", help="in another batch size; then weights are loaded")
parser.add_argument("--checkpointing", action="store_true")
options = parser.parse_args()

smp.init()
torch.manual_seed(0)
make = {
    "convnet": Convnet,
    "named": Named,
    "grouped": lambda: Grouped(smp.pp_size() - 1),
    "returning": Returning,
    "nested": Nested,
    "linformer": linformer,
}[options.model]
plain = make()
torch.manual_seed(0 if smp.dp_rank() == 0 else 99)  # weights are those of dp_rank 0
wrapped = make()
if options.checkpointing:
    smp.set_activation_checkpointing(wrapped.fc1)
model = smp.DistributedModel(
    wrapped, average_grads_across_microbatches=not options.no_average, backward_passes_per_step=options.every
)
optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
reference = torch.optim.Adam(plain.parameters(), lr=0.01)
microbatches = json.loads(os.environ["SM_HP_MP_PARAMETERS"]).get("microbatches", 1)
seen = {"hooks": 0, "pre": model.partitioned}
model.register_post_partition_hook(lambda *_: seen.update(hooks=seen["hooks"] + 1))


@smp.step
def train_step(model, images, labels):
    flat = images.flatten(1)
    output = call(options.model, model, images, flat)
    loss = functional.cross_entropy(output, labels)
    model.backward(loss)
    return output, {"loss": loss, "rank": smp.rank()}


@smp.step
def test_step(model, images, labels):
    output = call(options.model, model, images, images.flatten(1))
    return output, functional.cross_entropy(output, labels, reduction="sum")


if options.evaluated_first:
    model.eval()
    with torch.no_grad():
        test_step(model, torch.randn(3 * microbatches, 1, 14, 14), torch.zeros(3 * microbatches, dtype=torch.int64))
    torch.manual_seed(5)
    state = make().state_dict()
    model.load_state_dict(state)
    plain.load_state_dict(state)


def nothing():
    return [[None] * len(parameters) for _ in range(smp.dp_size())]


model.train()
losses, parameters = [], list(plain.parameters())
gradients = nothing()  # of each replica; added up at the end, as replicas do: Adam makes much of another rounding
for number, shards in enumerate(batches(1), 1):
    mine = shards[smp.dp_rank()] if smp.pp_rank() == 0 else tuple(torch.zeros_like(each) for each in shards[0])
    before = collections.Counter(Counted.passes)
    output, told = train_step(model, *mine)
    seen["passes"] = dict(Counted.passes - before)
    losses.append(told["loss"].reduce_mean().item())
    assert output.concat().shape[0] == len(shards[0][0])
    assert told["rank"] == [smp.get_mp_group()[-1]] * microbatches  # where the function was run
    for replica, (images, labels) in enumerate(shards):
        for parameter, gradient in zip(parameters, gradients[replica], strict=True):
            parameter.grad = gradient
        for part, target in zip(images.chunk(microbatches), labels.chunk(microbatches), strict=True):
            loss = functional.cross_entropy(call(options.model, plain, part, part.flatten(1)), target)
            (loss / smp.dp_size() / (1 if options.no_average else microbatches)).backward()
        gradients[replica] = [parameter.grad for parameter in parameters]
    if number % options.every == 0:
        optimizer.step()
        optimizer.zero_grad()
        for parameter, *each in zip(parameters, *gradients, strict=True):
            parameter.grad = sum(each)
        reference.step()
        gradients = nothing()

local = dict(model.local_named_parameters())
difference = max((value - dict(plain.named_parameters())[name]).abs().max().item() for name, value in local.items())

model.eval()
plain.eval()
generator = torch.Generator().manual_seed(7)
images = torch.randn(3 * microbatches * 2, 1, 14, 14, generator=generator)  # another batch size than in training
labels = torch.randint(0, 4, (len(images),), generator=generator)
with torch.no_grad():
    output, total = test_step(model, images, labels)
    evaluation = 0.0
    if smp.dp_size() == 1 or options.model != "convnet":  # BatchNorm's statistics are each replica's own
        expected = call(options.model, plain, images, images.flatten(1))
        evaluation = (output.concat() - expected).abs().max().item()
state = model.state_dict()
names = list(state)
whole = max((state[name] - value).abs().max().item() for name, value in plain.named_parameters())
everything = smp.allgather(
    {"difference": difference, "evaluation": evaluation, "whole": whole, "losses": losses, "local": sorted(local), "modules": [name for name, _ in model.local_named_modules()],
     "place": [smp.pp_rank(), smp.dp_rank()], "total": total.reduce_sum().item(), **seen}, smp.WORLD)  # fmt: skip
if smp.rank() == 0:
    folder = Path(os.environ["SAGEMAKER_BASE_DIR"], "output", "data")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "smp.json").write_text(json.dumps({"names": names, "ranks": everything}))
smp.barrier()
