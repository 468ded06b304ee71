"""What scripts for a GPU say of devices, each under a name; prints what came of it, a JSON object."""

import io
import json
import sys

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401


def where(*tensors):
    return sorted({str(tensor.device) for tensor in tensors})


def factories():
    devices = ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 1), torch.device("cuda:1")]
    made = [make(2, device=device) for device in devices for make in (torch.zeros, torch.randn, torch.arange)]
    one = torch.ones(1)
    return where(
        *made,
        torch.tensor([1], device="cuda"),
        torch.zeros_like(one, device="cuda"),
        one.new_zeros(1, device="cuda:0"),
        torch.empty(1, pin_memory=True),
    )


def tensors():
    one = torch.ones(1)
    moved = [one.to("cuda"), one.to(0), one.to(device="cuda:1", dtype=torch.float64), one.cuda(), one.cuda(0, True)]
    return where(*moved, one.pin_memory(), one.type("torch.cuda.FloatTensor"))


def modules():
    module = torch.nn.Linear(2, 2, device="cuda").to("cuda").to(0).to(torch.device("cuda:1")).cuda(1).cuda()
    return where(module.weight, module(torch.zeros(1, 2).cuda()))


def default_device():
    with torch.device("cuda"):
        inside = torch.zeros(1)
    torch.set_default_device("cuda:0")
    after = torch.zeros(1)
    torch.set_default_device(None)
    return where(inside, after)


def calls():
    torch.cuda.set_device(1)
    torch.cuda.manual_seed_all(0)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with torch.cuda.device(2):
        inside = torch.cuda.current_device()
    return [inside, torch.cuda.current_device(), torch.cuda.is_available(), torch.cuda.max_memory_allocated()]


def random_states():
    """Within a fork, by default or of a device, numbers are drawn that are drawn again after it."""
    found = []
    for options in ({}, {"devices": [0]}, {"devices": ["cuda:0"], "device_type": "cuda"}):
        with torch.random.fork_rng(**options):
            inside = torch.rand(3, device="cuda")
        found.append(torch.equal(torch.rand(3), inside))
    state = torch.cuda.get_rng_state()
    drawn = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    return [*found, torch.equal(torch.rand(3, device="cuda"), drawn)]


def loads():
    """A file as a GPU's process writes it."""
    file, tag = io.BytesIO(), torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: "cuda:3"
    torch.save(torch.arange(3), file)
    torch.serialization.location_tag = tag
    found = []
    for location in (None, "cuda", "cuda:1", torch.device("cuda"), {"cuda:3": "cuda:0"}, lambda s, _: s.cuda(1)):
        file.seek(0)
        found.append(torch.load(file, map_location=location))
    return [where(*found), [tensor.tolist() for tensor in found] == [[0, 1, 2]] * 6]


def recomputed():
    """A forward pass inside the backward pass."""
    found = []
    for reentrant in (True, False):
        x = torch.ones(2, requires_grad=True)
        y = checkpoint(lambda x: (x * torch.full((2,), 3.0, device="cuda")) ** 2, x, use_reentrant=reentrant)
        y.sum().backward()
        found.append(x.grad.tolist())
    return found


class Items(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([index]).cuda()


def workers():
    return sum(int(batch) for batch in DataLoader(Items(), num_workers=1, pin_memory=True))


def compiled():
    double = torch.compile(lambda x: x.to("cuda") * 2 + torch.ones(1, device="cuda"), backend="eager")
    return double(torch.ones(1)).tolist()


CASES = (factories, tensors, modules, default_device, calls, random_states, loads, recomputed, workers, compiled)
print(json.dumps({case.__name__: case() for case in CASES if not sys.argv[1:] or case.__name__ in sys.argv[1:]}))
