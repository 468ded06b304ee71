"""Every collective of the library's documentation, and those of torch beside them, over the backend `smddp`."""

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

import smdistributed.dataparallel.torch.distributed as sdp
from smdistributed.dataparallel.torch.parallel import DistributedDataParallel

sdp.init_process_group(group=sdp.group.WORLD)
rank, size = sdp.get_rank(), sdp.get_world_size(sdp.group.WORLD)


def own(value=None):
    return torch.tensor([float(rank + 1 if value is None else value)])


def empty():
    return [torch.zeros(1) for _ in range(size)]


def numbers(tensors):
    return [tensor.tolist() for tensor in tensors]


def after(call, *tensors):
    """The tensors after a collective, and whether it returned a handle."""
    handle = call(*tensors)
    if handle is not None:
        handle.wait()
    return [*(tensor.tolist() for tensor in tensors), handle is not None]


def reduced(op, **more):
    return after(lambda tensor: sdp.all_reduce(tensor, op, **more), own())


def exchanged():
    output = torch.zeros(size)
    handle = sdp.all_to_all_single(output_t=output, input_t=torch.arange(size) + 10.0 * rank, group=sdp.group.WORLD)
    return output.tolist(), handle


def exchanged_unequally():
    """Rank r sends r + 1 numbers to each rank."""
    output = torch.zeros(size * (size + 1) // 2)
    given = torch.full((size * (rank + 1),), float(rank))
    sdp.all_to_all_single(output, given, [other + 1 for other in range(size)], [rank + 1] * size)
    return output.tolist()


def gathered():
    parts = empty()
    return sdp.all_gather(parts, own()), numbers(parts)


def first_interface():
    op = sdp.ReduceOp
    parts = empty()
    return {
        "default": after(sdp.all_reduce, own()),
        "none": reduced(None),
        **{name: reduced(getattr(op, name)) for name in ("SUM", "AVERAGE", "MIN", "MAX")},
        "async": reduced(op.AVERAGE, async_op=True),
        "in a group": reduced(op.SUM, group=sdp.group.WORLD),
        "broadcast": after(sdp.broadcast, own()),
        "broadcast of 1": after(lambda tensor: sdp.broadcast(tensor, 1, async_op=True), own()),
        "all_gather": gathered(),
        "all_gather async": [sdp.all_gather(parts, own(), async_op=True).wait(), numbers(parts)],
        "all_to_all_single": exchanged(),
        "unequal parts": exchanged_unequally(),
        "barrier": [sdp.barrier(), sdp.barrier(async_op=True).wait(timeout=timedelta(seconds=60))],
        "state": [sdp.is_available(), sdp.is_initialized(), sdp.get_local_rank() == rank],
    }


def sent():
    """Round the ring."""
    got, to, of = torch.zeros(1), (rank + 1) % size, (rank - 1) % size
    pairs = [dist.P2POp(dist.isend, own(), to), dist.P2POp(dist.irecv, got, of)]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    return got.tolist()


def of_torch():
    into, mine, of_all, at_0, given = torch.zeros(size), torch.zeros(1), empty(), empty(), torch.zeros(1)
    dist.all_gather_into_tensor(into, own())
    dist.reduce_scatter_tensor(mine, torch.arange(size) + 1.0)
    if not torch.__version__.startswith("2.10."):  # its Gloo has all_to_all_single alone
        dist.all_to_all(of_all, list(torch.arange(size).float().split(1)))
    dist.gather(own(), at_0 if rank == 0 else None)
    dist.scatter(given, list(torch.arange(size).float().split(1)) if rank == 0 else None)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    said = ["from 0" if rank == 0 else None]
    dist.broadcast_object_list(said)
    pair = sdp.new_group([0, 1])  # the library knew one group only
    beside = dist.new_group(backend="gloo")  # nor could another backend run beside it
    in_pair = own()
    if rank < 2:
        sdp.all_reduce(in_pair, group=pair)
    return {
        "all_gather_into_tensor": into.tolist(),
        "reduce_scatter_tensor": mine.tolist(),
        "all_to_all": numbers(of_all),
        "gather": numbers(at_0),
        "scatter": given.tolist(),
        "objects": [item["rank"] for item in objects],
        "said": said,
        "ring": sent(),
        "pair": in_pair.tolist(),
        "backends": [dist.get_backend(), dist.get_backend(beside)],
        "beside": after(lambda tensor: dist.all_reduce(tensor, group=beside), own()),
    }


def refusal(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def without_local_rank():
    own = os.environ.pop("LOCAL_RANK")
    try:
        return refusal(sdp.get_local_rank)
    finally:
        os.environ["LOCAL_RANK"] = own


def refused():
    module = torch.nn.Linear(1, 1)
    premultiplied = dist.new_group()
    return {
        "average of integers": refusal(lambda: sdp.all_reduce(torch.ones(1, dtype=torch.int64), sdp.ReduceOp.AVERAGE)),
        # In a group of its own: gloo's barrier waits for the group's earlier work and would raise this error again.
        "premultiplied": refusal(lambda: dist.all_reduce(own(), dist._make_nccl_premul_sum(2.0), group=premultiplied)),
        "monitored_barrier": refusal(dist.monitored_barrier),
        "split_group": refusal(lambda: dist.split_group(split_ranks=[list(range(size))])),
        "accumulation": refusal(lambda: DistributedDataParallel(module, gradient_accumulation_steps=2)),
        "local rank": without_local_rank(),
        "group": refusal(lambda: sdp.init_process_group(group=sdp.new_group([0, 1]))),
    }


print(json.dumps({"first": first_interface(), "torch": of_torch(), "refused": refused()}), flush=True)
sdp.barrier()
sdp.destroy_process_group()
