"""Files and checkpoints of a small model in stages, beside the same model whole."""

import argparse
import sys
import warnings
from pathlib import Path

import torch

import smdistributed.modelparallel.torch as smp
from tests.compat.programs.smp_both import Both, batch, equal, net, refused, train_step
from tests.compat.smp_runs import say

torch.set_num_threads(1)


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
        "arguments": smp.load(f"{folder}/part.pt", None, None, {"weights_only": True}, True)["rank"],
        "no arguments": refused(smp.load, f"{folder}/part.pt", None, None, False),
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
    if order == f"not on rank {smp.rank()}":  # the disk of another host, without the files
        path += "-elsewhere"
    if order == "older on rank 1" and smp.rank():
        path += "-older"
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


def content(path, partial):
    """AWS's examples keep the script's arguments; other objects are told of while the script can be changed."""
    model, parts = smp.DistributedModel(net()), partial == "parts"
    train_step(model, batch(0))
    found = []
    for tag, kept in (("plain", argparse.Namespace(lr=0.1, layers=[1, 2])), ("opaque", {"it": Opaque()})):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            smp.save_checkpoint(path, tag, partial=parts, model=model, user_content=kept)
        found.append([str(each.message) for each in caught if "user_content" in str(each.message)])
    smp.barrier()
    found.append(vars(smp.resume_from_checkpoint(path, "plain", partial=parts)))
    found.append(refused(smp.resume_from_checkpoint, path, "opaque", partial=parts))
    torch.serialization.add_safe_globals([Opaque])
    found.append(type(smp.resume_from_checkpoint(path, "opaque", partial=parts)["it"]).__name__)
    unsaved = refused(smp.save_checkpoint, path, "1", partial=parts, model=model, user_content=lambda: 0)
    return [*found, unsaved]


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
