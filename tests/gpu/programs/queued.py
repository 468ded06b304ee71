"""Steps whose backward is long on the device, in a loop that reads no number. Prints what its own events say of the backward, and
how long the host needed to queue it: `measured: {"backward_s": .., "queued_s": ..}`."""

import json
import time

import torch

STEPS, UNSEEN = 60, 2  # the launcher's times of the device begin after the first step
SIDE, PRODUCTS = 2048, 40


class Slow(torch.autograd.Function):
    """Its input; the gradient takes PRODUCTS products of matrices."""

    @staticmethod
    def forward(ctx, inputs, matrix):
        ctx.matrix = matrix
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        product = ctx.matrix
        for _ in range(PRODUCTS):
            product = product @ ctx.matrix
        return gradient + 0 * product[0, 0], None


def main() -> None:
    device = torch.device("cuda")
    weight = torch.ones(8, device=device, requires_grad=True)
    matrix = torch.eye(SIDE, device=device)
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    events, queued_s = [], 0.0
    for step in range(STEPS):
        loss = Slow.apply(weight, matrix).sum()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        begun = time.perf_counter()
        loss.backward()
        end.record()
        if step >= UNSEEN:
            queued_s += time.perf_counter() - begun
            events.append((begin, end))
        optimizer.step()
    torch.cuda.synchronize()
    optimizer.step()  # the launcher asks its events at a step
    backward_s = sum(begin.elapsed_time(end) for begin, end in events) / 1000
    print("measured: " + json.dumps({"backward_s": backward_s, "queued_s": queued_s}), flush=True)


if __name__ == "__main__":
    main()
