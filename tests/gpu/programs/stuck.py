"""Steps whose collectives complete, and then QUEUED collectives behind a kernel that keeps the GPU busy for SECONDS.

A GPU's program runs ahead: the newest queued call says nothing about the one that waits. Prints the number of that one:
`waits in call N`.
"""

import sys

import torch
import torch.distributed as dist

DONE = 5
CYCLES_PER_S = 2_000_000_000  # GPUs run at 1 to 2.5 GHz


def main(queued: int, seconds: int) -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    value = torch.ones(8, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([value], lr=0.0)
    for _ in range(DONE):
        value.sum().backward()
        dist.all_reduce(value.grad)
        optimizer.step()
        torch.cuda.synchronize()
    print(f"waits in call {DONE + 1}", flush=True)
    torch.cuda._sleep(seconds * CYCLES_PER_S)  # a kernel that only counts cycles; torch's own tests use it
    for _ in range(queued):
        dist.all_reduce(value.grad)
    print(value.grad[0].item(), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
