"""STEPS steps of about 50 ms on the GPU, whose activities are noted in every other one, in random order; the others are one activity.

Prints the mean time in which the host queues a step of each kind, without the slowest tenth, and by how many begins and ends of
activities they differ: `measured: {"noted_s": .., "alone_s": .., "more": 4}`. The loss is read at the end of each step, so that
no step waits for room in the queue.
"""

import json
import random
import statistics
import sys
import time

import torch
from torch import nn

from algorun_train.common.activity import Activity

UNSEEN = 20
CYCLES = 80_000_000  # some 50 ms
LAYERS = 12
MORE = 4  # begin and end of forward, backward and optimizer, beside those of one activity


def main(steps: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(LAYERS))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(32, 64, device="cuda")

    def step() -> torch.Tensor:
        with Activity("forward"):
            loss = model(inputs).square().mean()
        with Activity("backward"):
            loss.backward()
        with Activity("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def alone() -> torch.Tensor:
        with Activity("forward"):
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss

    seconds: dict[str, list[float]] = {"noted_s": [], "alone_s": []}
    kinds = [kind for kind in (("noted_s", step), ("alone_s", alone)) for _ in range(steps // 2)]
    random.Random(0).shuffle(kinds)
    for number, (kind, run) in enumerate(kinds):
        torch.cuda._sleep(CYCLES)
        begun = time.perf_counter()
        loss = run()
        if number >= UNSEEN:
            seconds[kind].append(time.perf_counter() - begun)
        loss.item()
    means = {kind: statistics.fmean(sorted(each)[: len(each) * 9 // 10]) for kind, each in seconds.items()}
    print("measured: " + json.dumps({**means, "more": MORE}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
