"""Optimizer, scaler and clipping of a small model in stages, beside the same model whole."""

import copy
import sys

import torch
from torch.nn.utils import clip_grad_norm_ as one_ranks  # torch's own, since smp is not imported yet

import smdistributed.modelparallel.torch as smp  # isort: skip

from tests.compat.programs.smp_both import Both, batch, equal, refused, train_step  # isort: skip
from tests.compat.smp_runs import say  # isort: skip

torch.set_num_threads(1)


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
    found |= {"same": both.same(), "outside": refused(both.model.backward, torch.ones(()))}
    held = both.model.cpu().get_module().state_dict()
    return found | {"on the cpu": equal(dict(held), dict(both.whole.state_dict()))}


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


def clip():
    """Norms and clipped gradients are those of the whole model, in any order of norm; a rank's own list is its own."""
    both, found = Both(kind=torch.optim.SGD, rate=0.5), []
    for number, (limit, kind) in enumerate([(0.05, 2.0), (0.01, float("inf")), (0.1, 1.0), (100.0, 2.0)]):
        both.optimizer.zero_grad()
        train_step(both.model, batch(number))
        both.whole_optimizer.zero_grad()
        both.whole(batch(number)).square().mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(both.model.parameters(), limit, norm_type=kind)
        wanted = one_ranks(both.whole.parameters(), limit, norm_type=kind)
        both.optimizer.step()
        both.whole_optimizer.step()
        found.append([norm.item() / wanted.item(), equal(dict(both.model.state_dict()), dict(both.whole.state_dict()))])
    train_step(both.model, batch(0))
    named = dict(both.model.local_named_parameters())
    mine = {name: parameter.grad.clone() for name, parameter in named.items()}
    own = torch.nn.utils.clip_grad_norm_(both.model.local_parameters(), 100.0)
    for parameter in named.values():  # each by itself, on each rank as many as it has
        torch.nn.utils.clip_grad_norm_(parameter, 100.0)
    if smp.pp_rank() == 0:
        next(iter(named.values())).grad.fill_(float("nan"))
    return {
        "clipped": found,
        "own": own.item() - torch.stack([gradient.norm() for gradient in mine.values()]).norm().item(),
        "refused": refused(torch.nn.utils.clip_grad_norm_, both.model.parameters(), 1.0, error_if_nonfinite=True),
    }


smp.init()
say(globals()[sys.argv[1]](*sys.argv[2:]))
smp.barrier()
