"""A collective that does not end before the process group's timeout of SECONDS.

Several ranks: the last one never enters it. One rank on a GPU: its stream is kept busy for longer than the timeout, so
that the collective behind does not begin. One rank on the CPU has nobody to wait for, so the check starts two there.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

TIMES, CYCLES_PER_S = 3, 2_000_000_000  # how often the timeout the wait lasts; GPUs run at 1 to 2.5 GHz


def main(seconds: int) -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=datetime.timedelta(seconds=seconds))
    rank, size = dist.get_rank(), dist.get_world_size()
    value = torch.ones(1, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([value], lr=0.0)
    value.sum().backward()
    optimizer.step()
    dist.all_reduce(value.detach())
    print(f"ready, device {device}", flush=True)
    if size > 1 and rank == size - 1:
        time.sleep(TIMES * seconds)
    elif size == 1 and on_gpu:
        torch.cuda._sleep(TIMES * seconds * CYCLES_PER_S)  # a kernel that only counts cycles; torch's own tests use it
    dist.all_reduce(value.detach())
    if on_gpu:
        torch.cuda.synchronize()
    print("the collective ended", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
