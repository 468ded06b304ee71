"""Optimizer, scaler and checkpoints of a small model in stages, beside the same model whole."""

import copy
import sys
from pathlib import Path

import smdistributed.modelparallel.torch as smp
import torch
from torch import nn

from tests.compat.smp_runs import say

torch.set_num_threads(1)


def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(number):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(number))


@smp.step
def train_step(model, inputs):
    loss = model(inputs).square().mean()
    model.backward(loss)
    return loss


def equal(one, other):
    """Nested dictionaries and lists with tensors that are close."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.allclose(one.cpu(), other.cpu(), atol=1e-6)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


class Both:
    """The model in stages, and the same one whole."""

    def __init__(self, seed=0, rate=0.01, kind=torch.optim.AdamW):
        self.whole = net(seed)
        self.whole_optimizer = kind(self.whole.parameters(), lr=rate)
        self.model = smp.DistributedModel(copy.deepcopy(self.whole))
        self.optimizer = smp.DistributedOptimizer(kind(self.model.parameters(), lr=rate))

    def train(self, numbers):
        for number in numbers:
            self.optimizer.zero_grad()
            train_step(self.model, batch(number))
            self.optimizer.step()
            self.whole_optimizer.zero_grad()
            self.whole(batch(number)).square().mean().backward()
            self.whole_optimizer.step()

    def same(self):
        """Weights and the whole state of the optimizer, those of the whole model."""
        state = self.optimizer.state_dict()
        return [
            equal(dict(self.model.state_dict()), dict(self.whole.state_dict())),
            equal(state["state"], self.whole_optimizer.state_dict()["state"]),
            equal(state["param_groups"], self.whole_optimizer.state_dict()["param_groups"]),
        ]


def optimizer():
    both = Both()
    wrapped = both.optimizer
    found = {
        "kinds": [isinstance(wrapped, kind) for kind in (smp.DistributedOptimizer, torch.optim.AdamW)],
        "again": smp.DistributedOptimizer(wrapped) is wrapped,
        "copied": type(copy.deepcopy(wrapped)) is type(wrapped),
        "state before": wrapped.state_dict()["state"],
    }
    both.train([0, 1])
    local = wrapped.local_state_dict()
    found |= {"same": both.same(), "partial": local["_smp_is_partial"], "local": sorted(local["state"])}
    full = copy.deepcopy(wrapped.state_dict())
    # What another step has changed comes back from the parts and from the whole.
    for state in (copy.deepcopy(local), full):
        both.train([2])
        wrapped.load_state_dict(state)
        found.setdefault("back", []).append(equal(wrapped.state_dict()["state"], full["state"]))
        found.setdefault("kept local", []).append(sorted(wrapped.local_state_dict()["state"]))
    scheduler = torch.optim.lr_scheduler.StepLR(wrapped, 1, gamma=0.5)
    both.train([3])
    scheduler.step()
    found["rate"] = wrapped.param_groups[0]["lr"]
    found["scaling"] = type(smp.DistributedOptimizer(wrapped, static_loss_scale=None, dynamic_loss_scale=True,
                            dynamic_loss_args={"scale_window": 1000})).__name__  # fmt: skip
    found["unknown"] = refused(smp.DistributedOptimizer, wrapped, scale_widow=1)
    found["no optimizer"] = refused(smp.DistributedOptimizer, both.model)
    other = torch.optim.AdamW(list(both.whole.parameters())[:2])
    found["other"] = refused(wrapped.load_state_dict, other.state_dict())
    return found


def before():
    """State that is loaded before the model is partitioned waits for that; the rates do not."""
    both = Both()
    for number in range(2):
        both.whole_optimizer.zero_grad()
        both.whole(batch(number)).square().mean().backward()
        both.whole_optimizer.step()
    state = copy.deepcopy(both.whole_optimizer.state_dict())  # torch keeps the tensors that it is given
    state["param_groups"][0]["lr"] = 0.5
    both.model.load_state_dict(both.whole.state_dict())
    both.optimizer.load_state_dict(state)
    found = {"rate": both.optimizer.param_groups[0]["lr"], "state": len(both.optimizer.local_state_dict()["state"])}
    for group in (*both.optimizer.param_groups, *both.whole_optimizer.param_groups):
        group["lr"] = 0.02  # as a scheduler does meanwhile
    both.train([2, 3])
    return found | {"same": both.same()}


def local():
    """An optimizer over this rank's parameters: its own state works, the whole one is refused."""
    both = Both()
    train_step(both.model, batch(0))  # partitions
    own = smp.DistributedOptimizer(torch.optim.AdamW(both.model.local_parameters(), lr=0.01))
    train_step(both.model, batch(0))
    own.step()
    kept = copy.deepcopy(own.local_state_dict())
    own.step()
    own.load_state_dict(kept)
    kept.pop("_smp_is_partial")
    now = own.local_state_dict()
    now.pop("_smp_is_partial")
    return {"whole": refused(own.state_dict), "back": equal(now, kept)}


def scaler():
    """Only the last rank scales a loss; one rank's infinite gradient is everybody's skipped step."""
    both = Both(kind=torch.optim.SGD)
    train_step(both.model, batch(0))
    scaler = smp.amp.GradScaler(init_scale=4.0, growth_interval=1)
    last = smp.pp_rank() == smp.pp_size() - 1
    found = []
    for bad in (False, True):
        if last:
            scaler.scale(torch.zeros(()))
        both.optimizer.zero_grad()
        for parameter in both.model.local_parameters():
            parameter.grad = torch.full_like(parameter, float("inf") if bad and last else 4.0)
        was = [parameter.detach().clone() for parameter in both.model.local_parameters()]
        scaler.step(both.optimizer)
        moved = [(new - old).abs().max().item() for new, old in zip(both.model.local_parameters(), was, strict=True)]
        scale = scaler.get_scale()
        scaler.update()
        found.append([max(moved), scale, scaler.get_scale()])
    # A rank without any gradient takes part as well.
    both.optimizer.zero_grad()
    if last:
        next(iter(both.model.local_parameters())).grad = torch.full_like(next(iter(both.model.local_parameters())), 1.0)
    scaler.unscale_(both.optimizer)
    scaler.step(both.optimizer)
    scaler.update()
    return {"steps": found, "after": scaler.get_scale(), "off": smp.amp.GradScaler(enabled=False).is_enabled()}


class Opaque:
    pass


def files():
    folder = Path.cwd()
    rank = smp.mp_rank()
    smp.save({"rank": rank, "t": torch.full((2,), float(rank))}, f"{folder}/part.pt")
    smp.save({"whole": True}, f"{folder}/whole.pt", partial=False)
    smp.barrier()
    part, whole = smp.load(f"{folder}/part.pt"), smp.load(f"{folder}/whole.pt", partial=False)
    smp.save(Opaque(), f"{folder}/opaque.pt")
    name = f"{folder}/opaque.pt"
    return {
        "names": sorted(path.name for path in folder.iterdir() if ".pt" in path.name and "opaque" not in path.name),
        "part": [part["rank"], part["t"].tolist()],
        "whole": whole,
        "opaque": refused(smp.load, name).replace(str(folder), "FOLDER"),
        "allowed": [type(smp.load(name, weights_only=False)).__name__, type(smp.load(name, pickle_module=__import__("pickle"))).__name__],
        "missing": refused(smp.load, f"{folder}/whole.pt").replace(str(folder), "FOLDER"),
        "no text": refused(smp.save, 1, folder),
        "no folder": refused(smp.save, 1, "/proc/none/f").split(";")[0],
    }  # fmt: skip


def save(path, partial, tag="3", kept=None):
    both = Both()
    both.train([0, 1, 2])
    if kept:
        for number in range(3):
            smp.save_checkpoint(path, f"old{number}", model=both.model, num_kept_partial_checkpoints=int(kept))
            smp.barrier()
    smp.save_checkpoint(path, tag, partial=partial == "parts", model=both.model, optimizer=both.optimizer,
                        user_content={"steps": 3}, num_kept_partial_checkpoints=kept and int(kept))  # fmt: skip
    smp.barrier()
    return sorted(str(p.relative_to(path)) for p in Path(path).rglob("*") if p.is_file())


def resume(path, partial, order, tag=None):
    """In each order of making things: the next steps are those of a model that was never interrupted."""
    reference = net()
    steady = torch.optim.AdamW(reference.parameters(), lr=0.01)
    for number in range(6):
        steady.zero_grad()
        reference(batch(number)).square().mean().backward()
        steady.step()
    options = {"partial": partial == "parts", "tag": tag}
    if order == "elsewhere" and smp.rank():  # the disk of another host, without the files
        path += "-elsewhere"
    content = smp.resume_from_checkpoint(path, **options) if order == "first" else None
    both = Both(seed=5, rate=0.01)
    if order != "first":
        content = smp.resume_from_checkpoint(path, **options)
    both.train([3, 4, 5])
    state = both.optimizer.state_dict()["state"]
    return [
        content,
        equal(dict(both.model.state_dict()), dict(reference.state_dict())),
        equal(state, steady.state_dict()["state"]),
    ]


def lacking(path, *what):
    return [refused(smp.resume_from_checkpoint, path, partial=name == "parts") for name in what]


def wrong(path):
    model = smp.DistributedModel(net())
    train_step(model, batch(0))
    save = smp.save_checkpoint
    return [
        refused(save, path, "../x", model=model),
        refused(save, path, "1", model=net()),
        refused(save, path, "1", optimizer=torch.optim.SGD(model.parameters(), lr=1)),
        refused(save, path, "1", num_kept_partial_checkpoints=0),
        refused(save, "/proc/none" if smp.rank() else path, "1", model=model).split(";")[0],
        refused(save, "/proc/none" if smp.rank() == 0 else path, "1", partial=False, model=model).split(";")[0],
    ]


smp.init()
say(globals()[sys.argv[1]](*sys.argv[2:]))
smp.barrier()
