"""Copies a state of GIB x 2**30 bytes from the GPU as a sharded save does, and tensor by tensor into pageable memory, in turns.

Prints the seconds of each way, the first (which pins memory) apart: `measured: {"bytes": .., "first_s": .., "ours_s": [..],
"pageable_s": [..]}`. Ends with an error if a copy differs from its source.
"""

import json
import sys
import time

import torch

from algorun_train.checkpoint.shard_saver import on_cpu
from algorun_train.ranks.host_copies import HostCopies

ROUNDS = 5
MATRICES = 64


def main(gib: float) -> None:
    rows = int(gib * 2**30) // MATRICES // (4 * 4096)
    state = {f"layer.{n}": torch.randn(rows, 4096, device="cuda") for n in range(MATRICES)}
    host = HostCopies()

    def ours() -> dict[str, torch.Tensor]:
        host.begin()
        copies = on_cpu(state, host)
        host.wait()
        return copies

    def pageable() -> dict[str, torch.Tensor]:
        return {name: tensor.cpu() for name, tensor in state.items()}

    torch.cuda.synchronize()
    first_s, _ = timed(ours)
    ours_s, pageable_s = [], []
    for _ in range(ROUNDS):
        for way, seconds in ((ours, ours_s), (pageable, pageable_s)):
            spent, copies = timed(way)
            seconds.append(spent)
            wrong = [name for name, copy in copies.items() if not torch.equal(copy[::97].cuda(), state[name][::97])]
            if wrong:
                raise SystemExit(f"{way.__name__}: the copies of {', '.join(wrong)} differ from their sources")
    count = sum(tensor.numel() * 4 for tensor in state.values())
    found = {"bytes": count, "first_s": first_s, "ours_s": ours_s, "pageable_s": pageable_s}
    print("measured: " + json.dumps(found), flush=True)


def timed(way):
    begun = time.perf_counter()
    copies = way()
    return time.perf_counter() - begun, copies


if __name__ == "__main__":
    main(float(sys.argv[1]))
