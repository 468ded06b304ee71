"""What watching for values that are not finite costs a step, with and without the watch in turns: `python bench/nonfinite.py`.

One process trains a GPT on the GPU, or on the CPU. Blocks of steps with the watch (inside/rank_nonfinite.py) and without it
follow each other, so that clocks and other programs disturb both alike; the median of all pairs counts. Then something is
broken in one step, and what the watch says of it is printed. On a GPU torch's synchronisations are errors meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time

import torch
from torch import nn

from algorun.inside import rank_nonfinite
from algorun.inside.rank_nonfinite import Clip, NonFinite, watch_scaler

FIRST = rank_nonfinite._first  # looks at a step that is known to be broken: it may wait for the GPU


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, max(1, width // 64), batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        normed = self.first(inputs)
        inputs = inputs + self.attention(normed, normed, normed, need_weights=False)[0]
        return inputs + self.narrow(nn.functional.gelu(self.wide(self.second(inputs))))


class Training:
    """A model, its optimizer and a watch that can be off."""

    def __init__(self, width: int, depth: int, tokens: int, clip: bool, device: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[Layer(width) for _ in range(depth)]).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.inputs = torch.randn(max(1, tokens // 512), min(tokens, 512), width, device=device)
        self.clip, self.device = clip, device
        self.found: list[object] = []
        self.watch = NonFinite(lambda: -1, self.found.append)
        self.watches, self.own_s = True, 0.0  # CPU seconds before steps
        self.optimizer.register_step_pre_hook(self._before)
        Clip(self.watch).replace(nn.utils.clip_grad)
        watch_scaler(torch.amp.grad_scaler, self.watch)
        self.plain_clip = nn.utils.clip_grad_norm_.__wrapped__

    def _before(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self.watches:
            begin = time.thread_time()
            self.watch.before_step(optimizer)
            self.own_s += time.thread_time() - begin

    def step(self, broken: str = "") -> None:
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.model(self.inputs).square().mean()
        loss = loss * math.nan if broken == "loss" else loss
        if self.watches:
            self.watch.note_loss(loss)
        loss.backward()
        weight = self.model[-1].wide.weight
        if broken == "gradient":
            weight.grad[0].fill_(math.nan)
        if broken == "state":
            self.optimizer.state[weight]["exp_avg"][0].fill_(math.nan)
        if self.clip:
            (nn.utils.clip_grad_norm_ if self.watches else self.plain_clip)(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def block(self, steps: int, *, watches: bool) -> float:
        """Seconds of a step."""
        self.watches = watches
        wait(self.device)
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        wait(self.device)
        return (time.perf_counter() - begin) / steps


def synchronisations(device: str, mode: str) -> None:
    if device == "cuda":
        torch.cuda.set_sync_debug_mode(mode)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def cost(training: Training, blocks: int, steps: int) -> dict[str, object]:
    for watches in (True, False):
        training.block(steps, watches=watches)
    plain, ratios = [], []
    training.own_s = 0.0
    for number in range(blocks):
        pair = {
            watches: training.block(steps, watches=watches)
            for watches in ((True, False) if number % 2 else (False, True))
        }
        plain.append(pair[False])
        ratios.append(pair[True] / pair[False] - 1)
    scatter = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return {
        "step_ms": round(1e3 * statistics.median(plain), 2),
        "cost_percent": round(100 * statistics.median(ratios), 3),
        "standard_error_percent": round(100 * scatter, 3),
        "before_step_us": round(1e6 * training.own_s / blocks / steps, 1),
        "norms_every": training.watch._every,
        "weights": sum(each.numel() for each in training.model.parameters()),
    }


def finding(build: list[object], broken: str, at: int, steps: int) -> dict[str, object]:
    """What is said of one broken step, and how many steps later."""
    training = Training(*build)
    rank_nonfinite._first = lambda moment: (synchronisations(training.device, "default"), FIRST(moment))[1]
    if training.device == "cuda":
        training.step()
        synchronisations(training.device, "error")
    told_at = 0
    for step in range(2 if training.device == "cuda" else 1, steps + 1):
        training.step(broken if step == at else "")
        if training.found and not told_at:
            told_at = step
            synchronisations(training.device, "default")
    synchronisations(training.device, "default")
    found = training.found[0] if training.found else None
    said = {name: getattr(found, name) for name in ("step", "earliest", "of", "value")} if found else {}
    return {"broken": broken, "at": at, "told_at": told_at, "names": found.names[:2] if found else [], **said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("width", 0), ("depth", 0), ("tokens", 0), ("blocks", 24), ("steps", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    sizes = (
        given.width or (1024 if on_gpu else 128),
        given.depth or (24 if on_gpu else 4),
        given.tokens or (8192 if on_gpu else 256),
    )
    for clip in (False, True):
        training = Training(*sizes, clip, device)
        print(
            json.dumps({"clip": clip, "device": device} | cost(training, given.blocks, given.steps or 20)), flush=True
        )
        del training
        for broken in ("loss", "gradient", "state", ""):
            print(json.dumps({"clip": clip} | finding([*sizes, clip, device], broken, 21, 48)), flush=True)


if __name__ == "__main__":
    main()
