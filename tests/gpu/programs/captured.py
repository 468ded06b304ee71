"""Captures a whole training step, the optimizer's included, as a CUDA graph, and replays it for SECONDS.

A replayed optimizer calls none of its hooks: whoever counts steps by them sees none.
"""

import sys
import time

import torch
from torch import nn


def main(seconds: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    inputs, targets = torch.randn(64, 256, device="cuda"), torch.randn(64, 1, device="cuda")

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    aside = torch.cuda.Stream()  # as torch's notes on CUDA graphs ask for: some steps before, on another stream
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        graph.replay()
        torch.cuda.synchronize()
        count += 1
        time.sleep(0.01)
    print(f"replayed {count} steps, loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
