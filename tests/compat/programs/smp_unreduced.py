"""Backward passes that no step function's end waits for, on two replicas of a whole model, beside the same model alone.

Says for each of the phases below, which follow each other, how far the parameters are from those of the model alone, how
far the replicas are from each other, and how many reductions there were.
"""

import torch
import torch.distributed as dist
from torch import nn

import smdistributed.modelparallel.torch as smp
from tests.compat.smp_runs import say

torch.set_num_threads(1)
REPLICAS = (0, 1)
reductions = 0
all_reduce = dist.all_reduce


def counted(*args, **kwargs):
    global reductions
    reductions += 1
    return all_reduce(*args, **kwargs)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.unused = nn.Linear(2, 2)  # without a gradient an optimizer leaves it alone

    def forward(self, x):
        return self.layers(x)


def batch(replica, number):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * replica + number))


def loss_of(output):
    return output.square().mean()


@smp.step
def by_model(model, inputs):
    model.backward(loss_of(model(inputs)))


@smp.step
def by_loss(model, inputs):
    loss_of(model(inputs)).backward()


@smp.step
def by_both(model, inputs):
    model.backward(loss_of(model(inputs)))
    loss_of(2 * model(inputs)).backward()


def alone(number, replicas=REPLICAS, factor=1.0):
    """The mean over all replicas, of those that have a batch."""
    for replica in replicas:
        (factor * loss_of(plain(batch(replica, number))) / len(REPLICAS)).backward()


def both_step():
    for each in (optimizer, reference):
        each.step()
        each.zero_grad()


def normal(number, mine):
    by_model(model, mine)
    alone(number)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    both_step()


def normal_scaled(number, mine):
    by_model(model, mine)  # the scale is 1
    alone(number)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.zeros(()))
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    reference.step()
    optimizer.zero_grad()
    reference.zero_grad()


def outside(number, mine):
    loss_of(model(mine)).backward()
    alone(number)
    both_step()


def outside_by_model(number, mine):
    model.backward(loss_of(model(mine)))
    alone(number)
    both_step()


def in_a_step(number, mine):
    by_loss(model, mine)
    alone(number)
    both_step()


def two_ways_in_a_step(number, mine):
    by_both(model, mine)
    alone(number, factor=5.0)
    both_step()


def accumulated(number, mine):
    for further in (0, 500):
        part = batch(rank, number + further)
        if number % 2:
            by_loss(model, part)
        else:
            loss_of(model(part)).backward()
        alone(number + further)
    both_step()


def after_a_step(number, mine):
    """What the step has reduced, and more."""
    by_model(model, mine)
    loss_of(model(batch(rank, number + 500))).backward()
    alone(number)
    alone(number + 500)
    both_step()


def on_one_replica(number, mine):
    if rank == 0:
        loss_of(model(mine)).backward()
    else:
        torch.ones(1, requires_grad=True).sum().backward()
    alone(number, replicas=[0])
    both_step()


def clipped(number, mine):
    loss_of(model(mine)).backward()
    alone(number)
    if number % 2:
        for each in (model, plain):
            torch.nn.utils.clip_grad_norm_(each.parameters(), 0.01)
    else:
        for each in (model, plain):
            torch.nn.utils.clip_grad_value_(each.parameters(), 0.001)
    both_step()


def scaled(kind):
    def train(number, mine):
        scaler = kind(init_scale=4.0)
        bad = number % 2 and rank == 1  # then both replicas have to skip the step
        loss = loss_of(model(mine))
        scaler.scale(loss * float("inf") if bad else loss).backward()
        if number % 3:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.02)
        scaler.step(optimizer)
        optimizer.zero_grad()
        if not number % 2:
            alone(number)
            if number % 3:
                torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.02)
            reference.step()
            reference.zero_grad()

    return train


def closure(number, mine):
    def again(each, backward):
        def compute():
            each.zero_grad()
            return backward()

        return compute

    optimizer.step(again(optimizer, lambda: loss_of(model(mine)).backward()))
    reference.step(again(reference, lambda: alone(number)))
    optimizer.zero_grad()
    reference.zero_grad()


def nothing(number, mine):
    """A step without a gradient, as some scripts make for their schedulers."""
    both_step()


def uneven(step, by_all=True):
    def train(number, mine):
        count = 3 if rank == 0 else 1
        with model.join(divide_by_initial_world_size=by_all):
            for further in range(0, 500 * count, 500):
                step(batch(rank, number + further))
                optimizer.step()
                optimizer.zero_grad()
        for turn in range(3):
            left = REPLICAS if turn == 0 else [0]
            alone(number + 500 * turn, left, 1.0 if by_all else len(REPLICAS) / len(left))
            reference.step()
            reference.zero_grad()

    return train


PHASES = {
    "normal": normal,
    "normal, scaled": normal_scaled,
    "outside": outside,
    "outside, model.backward": outside_by_model,
    "in a step": in_a_step,
    "two ways in a step": two_ways_in_a_step,
    "normal, later": normal,
    "accumulated": accumulated,
    "after a step": after_a_step,
    "on one replica": on_one_replica,
    "clipped": clipped,
    "smp's scaler": scaled(smp.amp.GradScaler),
    "torch's scaler": scaled(lambda **options: torch.amp.GradScaler("cpu", **options)),
    "closure": closure,
    "nothing": nothing,
    "join, a mean of those left": uneven(lambda part: loss_of(model(part)).backward(), by_all=False),
    "join, in a step, of those left": uneven(lambda part: by_model(model, part), by_all=False),
    "join": uneven(lambda part: loss_of(model(part)).backward()),
    "join, in a step": uneven(lambda part: by_loss(model, part)),
}


def furthest(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


smp.init()
rank = smp.rank()
dist.all_reduce = counted
torch.manual_seed(0)
plain = Net()
torch.manual_seed(rank)
model = smp.DistributedModel(Net(), find_unused_parameters=True)
options = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01}
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), **options))
reference = torch.optim.SGD(plain.parameters(), **options)
found = {}
for index, (name, train) in enumerate(PHASES.items()):
    before = reductions
    for number in range(10 * index, 10 * index + 4):
        train(number, batch(rank, number))
    count = reductions - before
    replicas = smp.allgather([p.detach() for p in model.parameters()], smp.WORLD)
    found[name] = {
        "difference": furthest(model.module.layers.parameters(), plain.layers.parameters()),
        "unused": furthest(model.module.unused.parameters(), plain.unused.parameters()),
        "apart": furthest(*replicas),
        "reductions": count,
    }
    model.load_state_dict(plain.state_dict())  # roundings don't add up over the phases
say(found)
smp.barrier()
