"""Rounds in which all contenders have their turns, and that count only while the machine does nothing else."""

import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from algorun_train.ranks.communicator import Communicator

FOREIGN = 0.1  # cores; above it a round does not count
HERTZ = os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """CPU time of the whole machine since its start."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / HERTZ  # without idle and waiting for disks


def quartiles(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile; of a single value that value."""
    return statistics.quantiles(values, n=4) if len(values) > 1 else values * 3


def paired_ratio(mine: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """The median of the ratios within a round, and a 95 % interval around it, as (low, median, high).

    The interval goes from the k-th smallest to the k-th largest ratio (binomial, no assumption on their distribution).
    Below six rounds no k gives 95 %: it goes from the smallest to the largest.
    """
    ratios = sorted(one / other for one, other in zip(mine, theirs, strict=True))
    count, below, k = len(ratios), 0.0, 0
    while (below := below + math.comb(count, k) / 2**count) <= 0.025:
        k += 1
    return ratios[max(k - 1, 0)], statistics.median(ratios), ratios[count - max(k, 1)]


def timed(turn: Callable[[], None], steps: int) -> float:
    """Seconds per step, from one meeting of the ranks to the next."""
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        turn()
    dist.barrier()
    return (time.perf_counter() - begun) / steps


def quiet_rounds(
    comm: Communicator,
    turns: dict[str, Callable[[], None]],
    count: int,
    steps: int,
    foreign: float = FOREIGN,
    before: Callable[[], None] = lambda: None,
    kept: Callable[[], None] = lambda: None,
) -> tuple[dict[str, list[float]], int]:
    """Seconds per step of every contender in `count` rounds, and the number of those dropped for foreign load.

    `before` runs at the begin of each round, `kept` after one that counts: one in which others used at most `foreign` cores.
    """
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    shuffle, number, dropped = random.Random(0), 0, 0
    for turn in turns.values():
        turn()  # shapes, buffers
    while number < count and dropped < 4 * count:
        own, machine, clock = time.process_time(), busy_s(), time.perf_counter()
        before()
        found = {name: timed(turns[name], steps) for name in shuffle.sample(list(turns), len(turns))}
        rows = comm.exchange([time.process_time() - own])
        others = (busy_s() - machine - sum(row[0] for row in rows)) / (time.perf_counter() - clock)
        if comm.exchange([others])[0][0] > foreign:
            dropped += 1
            continue
        kept()
        for name, value in found.items():
            seconds[name].append(value)
        number += 1
    if not number:
        sys.exit("error: foreign load in every round; fix: run it on a quiet machine")
    return seconds, dropped
