"""A small model in shares, beside the same model whole: sharded data parallelism."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as one_ranks  # torch's own, since smp is not imported yet

import smdistributed.modelparallel.torch as smp  # isort: skip

from tests.compat.programs.smp_both import refused  # isort: skip
from tests.compat.smp_runs import say  # isort: skip

torch.set_num_threads(1)
ROWS, WIDTH = 4, 6  # of a rank's batch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 10)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(10, 7), nn.GELU(), nn.Linear(7, 10)) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(10), nn.Linear(10, 3, bias=False)

    def forward(self, x):
        x = self.inner(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x))


@smp.step
def train_step(model, x, y):
    loss = (model(x) - y).square().mean()
    model.backward(loss)
    return loss


@smp.step
def by_loss(model, x, y):
    (model(x) - y).square().mean().backward()


@smp.step
def evaluate(model, x, y):
    return (model(x) - y).square().mean()


def made(dtype=torch.float64):
    torch.manual_seed(5)
    return Model().to(dtype)


def batch(number, rank=None, dtype=torch.float64):
    """This rank's rows, or all of them."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(smp.size() * ROWS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randn(smp.size() * ROWS, 3, generator=generator, dtype=torch.float64).to(dtype)
    rows = slice(None) if rank is None else slice(rank * ROWS, (rank + 1) * ROWS)
    return x[rows], y[rows]


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.05)


def far(one, other):
    """The largest difference of two state dicts, over each tensor's norm."""
    assert one.keys() == other.keys()
    return max(((a - other[k]).norm() / other[k].norm().clamp(min=1e-30)).item() for k, a in one.items())


def whole_run(model, optimizer, numbers, clip):
    """The same training in this process alone; its losses and norms."""
    found = []
    for number in numbers:
        optimizer.zero_grad()
        x, y = batch(number)
        loss = (model(x) - y).square().mean()
        loss.backward()
        norm = one_ranks(model.parameters(), clip) if clip else None
        optimizer.step()
        found.append((loss.item(), norm.item() if clip else None))
    return found


def sharded_run(model, optimizer, numbers, step=train_step):
    found = []
    for number in numbers:
        optimizer.zero_grad()
        loss = step(model, *batch(number, smp.rank() if smp.pp_size() == 1 else None))
        if loss is not None and hasattr(loss, "reduce_mean"):
            loss = loss.reduce_mean().detach()
            torch.distributed.all_reduce(loss)
            found.append(loss.item() / smp.size())
        optimizer.step()
    return found


def parity(clip, early="", by=""):
    clip, whole = float(clip), made()
    plain = adam(whole.parameters())
    module = made()
    optimizer = adam(module.parameters()) if early else None  # before the model is wrapped
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(optimizer or adam(model.parameters()))
    wanted = whole_run(whole, plain, range(4), clip)
    step = by_loss if by else train_step
    losses = sharded_run(model, optimizer, range(4), step)
    found = {
        "weights": far(model.state_dict(), whole.state_dict()),
        "losses": max((abs(a - b) for a, (b, _) in zip(losses, wanted, strict=True)), default=0.0) if not by else 0.0,
        "norm": abs(optimizer._global_grad_norm / wanted[-1][1] - 1) if clip else 0.0,
        "moments": far(
            {str(n): each["exp_avg"] for n, each in optimizer.state_dict()["state"].items()},
            {str(n): each["exp_avg"] for n, each in plain.state_dict()["state"].items()},
        ),
    }
    with torch.no_grad():
        model.eval()
        found["evaluation"] = abs(
            evaluate(model, *batch(9)).reduce_mean().item()
            - (whole.eval()(batch(9)[0]) - batch(9)[1]).square().mean().item()
        )
    own = sum(parameter.ds_tensor.ds_numel for parameter in model.parameters())
    found["bytes"] = [own, sum(parameter.numel() for parameter in whole.parameters())]
    found["shapes"] = all(
        parameter.ds_shape == other.shape
        for parameter, other in zip(model.parameters(), whole.parameters(), strict=True)
    )
    flat, offset, same = optimizer.fp32_partitioned_groups_flat[0], 0, []
    for parameter in model.parameters():
        same.append(torch.equal(flat.narrow(0, offset, parameter.ds_tensor.ds_numel), parameter.ds_tensor))
        offset += parameter.ds_tensor.ds_numel
    return found | {"flat": all(same), "bad narrow": refused(flat.narrow, 0, 1, 1)}


def refusals():
    model = smp.DistributedModel(made())
    optimizer = smp.DistributedOptimizer(adam(model.parameters()))

    def joined():
        with model.join():
            train_step(model, *batch(0, smp.rank()))

    return {
        "closure": refused(optimizer.step, lambda: None),
        "hook": refused(model.register_comm_hook, None, print),
        "join": refused(joined),
        "module": refused(model.module.state_dict),
        "cpu": refused(model.cpu),
        "part": refused(model.load_state_dict, {"_smp_is_partial": True}),
    }


def clipping():
    """A script's own clipping, of gradients that a backward pass outside of a step has made."""
    whole, found = made(), []
    model = smp.DistributedModel(made())
    for kind in (2.0, float("inf"), 1.0):
        for each in (model, whole):
            each.zero_grad()
        x, y = batch(0)
        (whole(x) - y).square().mean().backward()
        x, y = batch(0, smp.rank())
        model.backward((model(x) - y).square().mean())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type=kind)
        wanted = one_ranks(whole.parameters(), 0.01, norm_type=kind)
        gradients = {n: p.grad.full_tensor() for n, p in model.get_module().named_parameters()}
        found.append(
            [norm.item() / wanted.item() - 1, far(gradients, {n: p.grad for n, p in whole.named_parameters()})]
        )
    return found


def half(kind):
    """Weights that the script makes in half precision are trained as float32, and units compute in it."""
    with smp.model_creation(dtype={"bf16": torch.bfloat16, "fp16": torch.float16}[kind]):
        torch.manual_seed(5)
        module = Model()
    seen = []
    module.layers[0].register_forward_hook(lambda layer, args, output: seen.append(str(output.dtype)))
    model = smp.DistributedModel(module)
    scaling = {"static_loss_scale": None, "dynamic_loss_scale": True, "dynamic_loss_args": {"init_scale": 2.0**24}}
    optimizer = smp.DistributedOptimizer(adam(model.parameters()), **scaling)
    before = model.state_dict()
    losses = sharded_run(model, optimizer, [0] * 20)
    scales = []
    for state in (optimizer.local_state_dict(), optimizer.state_dict()):
        scales.append(optimizer.loss_scale)
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float("inf"))
        optimizer.step()
        scales.append(optimizer.loss_scale)
        optimizer.load_state_dict(state)
        scales.append(optimizer.loss_scale)
    return {
        "master": sorted({str(each.dtype) for each in (*model.parameters(), *before.values())}),
        "moments": sorted({str(each["exp_avg"].dtype) for each in optimizer.state_dict()["state"].values()}),
        "inside": seen[0],
        "scales": [scale / scales[0] for scale in scales],
        "overflow": optimizer.overflow,
        "losses": losses,
    }


def save(folder, steps, partial):
    model, optimizer = smp.DistributedModel(made()), None
    optimizer = smp.DistributedOptimizer(adam(model.parameters()))
    sharded_run(model, optimizer, range(int(steps)))
    smp.save_checkpoint(folder, "one", bool(partial), model, optimizer, {"steps": int(steps)})
    return sorted(each.name for each in Path(folder, "one_partial").glob("*")) if partial else []


def resume(folder, steps, partial):
    """Goes on after `steps`, and compares with training without a stop in this process."""
    torch.manual_seed(77)
    model = smp.DistributedModel(Model().double())
    optimizer = smp.DistributedOptimizer(adam(model.parameters()))
    content = smp.resume_from_checkpoint(folder, None if partial else "one", bool(partial))
    whole = made()
    plain = adam(whole.parameters())
    for number in range(content["steps"] if content else int(steps)):  # the batches of the job that has saved
        plain.zero_grad()
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(2 * ROWS, WIDTH, generator=generator, dtype=torch.float64)
        y = torch.randn(2 * ROWS, 3, generator=generator, dtype=torch.float64)
        (whole(x) - y).square().mean().backward()
        plain.step()
    at_once = far(model.state_dict(), whole.state_dict())
    whole_run(whole, plain, [50, 51], 0.0)
    sharded_run(model, optimizer, [50, 51])
    return {"at once": at_once, "after": far(model.state_dict(), whole.state_dict())}


smp.init()
say(globals()[sys.argv[1]](*sys.argv[2:]))
smp.barrier()
