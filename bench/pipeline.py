"""Step time of pipeline stages beside one process, the simulated ideal and torch.distributed.pipelining used plainly.

    python bench/pipeline.py [--rounds 15] [--steps 3] [--microbatches 8] [--json FILE]

Two gloo processes on one machine, all contenders in turn in every round, in an order that changes. A step is forward and
backward of one batch; the optimizer is not in it. The stages are those that the partition chooses. Beside torch's own
schedules the layers are even on both sides: the same cuts, so that only the way of running them differs.

The ideal is an event simulation of the schedule with the times of segments that both processes measured at once at the
beginning of each round. Rounds with foreign load (CPU time of the machine that is not these processes') above a tenth of
a core do not count; their number is told.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

from algorun_train.parallel.cut.any_module import cut
from algorun_train.parallel.layout.grid import grid
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.partition.cost_model import CostModel
from algorun_train.parallel.partition.costs import Partition, SegmentProfile
from algorun_train.parallel.partition.layers_to_stages import choose_stages
from algorun_train.parallel.partition.memory import MemoryModel, preallocated
from algorun_train.parallel.partition.profiling import combined, profile
from algorun_train.parallel.run.live_memory import peak_bytes
from algorun_train.parallel.run.options import RunOptions
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.run.process_groups import join
from algorun_train.parallel.schedules import PipelineShape
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from bench.quiet import paired_ratio, quiet_rounds
from bench.stages import MICROBATCH, RANKS, as_rank, loss, models, on_ranks, options, spread, targets_of

PLAIN = ("1f1b", "interleaved")  # also as torch has them, on the same cuts
SOLVED = 5  # at most so often the large search for a partition
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero-bubble": 2, "zbv": 2, "dualpipev": 2}


class Bench:
    """One model on two ranks."""

    def __init__(self, name: str, comm: Communicator, args: argparse.Namespace) -> None:
        make, inputs = models(args)[name]
        torch.manual_seed(0)
        self.comm, self.microbatches, self.model = comm, args.microbatches, make()
        self.inputs = inputs(MICROBATCH * args.microbatches)
        self.cutting = cut(self.model, self.inputs[:MICROBATCH], stages=2 * RANKS)
        self.targets = targets_of(self.model, self.inputs)
        self.axes = join(grid(comm.size, RANKS), comm.rank, comm.device)
        self.memory = MemoryModel(preallocated=preallocated(torch.__version__))

    def segments(self) -> list[SegmentProfile]:
        return profile(self.cutting, "cpu", loss=lambda output: loss(output, self.targets[:MICROBATCH]))

    def even(self, segments: list[SegmentProfile], stages: int) -> tuple[int, ...]:
        """As many blocks per stage as the others; what is before and after them stays at the ends."""
        blocks = [i for i, segment in enumerate(segments) if segment.name.startswith("blocks.")]
        cuts = even(len(blocks), stages)
        return (0, *(blocks[place] for place in cuts[1:]))

    def ours(self, schedule: str, begins: tuple[int, ...]) -> Callable[[], None]:
        how = RunOptions(microbatches=self.microbatches, schedule=schedule)
        pipeline = Pipeline(ModelStages(self.cutting, begins), self.axes, how, loss)
        pipeline.train()

        def step() -> None:
            pipeline.step(self.inputs, self.targets)
            for parameter in pipeline.parameters():
                parameter.grad = None

        step.pipeline = pipeline  # type: ignore[attr-defined]
        return step

    def plain(self, schedule: str, stages: int) -> Callable[[], None]:
        """As torch's tutorial has it: a Sequential per stage, shapes found out by torch."""
        parts = self._sequence()
        blocks = [i for i, (name, _) in enumerate(parts) if name.startswith("blocks.")]
        begins = [0, *(blocks[place] for place in even(len(blocks), stages)[1:]), len(parts)]
        held = range(self.comm.rank, stages, RANKS)
        modules = {s: nn.Sequential(*(module for _, module in parts[begins[s] : begins[s + 1]])) for s in held}
        made = [pipelining.PipelineStage(modules[s], s, stages, torch.device("cpu")) for s in held]
        kind = {"1f1b": pipelining.Schedule1F1B, "interleaved": pipelining.ScheduleInterleaved1F1B}[schedule]
        runner = kind(made[0] if schedule == "1f1b" else made, self.microbatches, loss_fn=loss)
        arguments = (self.inputs,) if self.comm.rank == 0 else ()
        target = {"target": self.targets} if self.comm.rank == RANKS - 1 else {}

        def step() -> None:
            runner.step(*arguments, **target)
            for module in modules.values():
                for parameter in module.parameters():
                    parameter.grad = None

        return step

    def _sequence(self) -> list[tuple[str, nn.Module]]:
        model = self.model
        blocks = [(f"blocks.{i}", block) for i, block in enumerate(model.blocks)]
        if hasattr(model, "embed"):
            return [("embed", model.embed), *blocks, ("norm", model.norm), ("head", model.head)]
        return [("patches", model.patches), *blocks, ("norm", model.norm), ("mean", Mean()), ("head", model.head)]

    def alone(self) -> Callable[[], None]:
        """All of it on rank 0, microbatch by microbatch, while rank 1 waits."""

        def step() -> None:
            if self.comm.rank:
                return
            for part, target in zip(self.inputs.split(MICROBATCH), self.targets.split(MICROBATCH), strict=True):
                (loss(self.model(part), target) / self.microbatches).backward()
            self.model.zero_grad(set_to_none=True)

        return step


def even(segments: int, stages: int) -> tuple[int, ...]:
    """The first segment of each stage, with equal numbers of segments as near as that goes."""
    return tuple(segments * stage // stages for stage in range(stages))


class Mean(nn.Module):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.mean(dim=1)


def rounds(
    bench: Bench, turns: dict[str, Callable[[], None]], args: argparse.Namespace
) -> tuple[dict[str, list[float]], list[list[SegmentProfile]], int]:
    """Seconds per step of every contender and the profile of each round that counts; the number of those that don't."""
    profiles, latest = [], []
    seconds, dropped = quiet_rounds(
        bench.comm, turns, args.rounds, args.steps, args.foreign,
        before=lambda: latest.append(bench.segments()),
        kept=lambda: profiles.append(combined(bench.comm.gather(latest[-1]))),
    )  # fmt: skip
    return seconds, profiles, dropped


def partition(bench: Bench, segments: list[SegmentProfile], schedule: str, begins: tuple[int, ...] | None) -> Partition:
    shape = PipelineShape(schedule, RANKS, CHUNKS[schedule], bench.microbatches)
    if begins is None:
        return bench.comm.from_leader(lambda: chosen(CostModel(segments, shape, bench.memory)))
    return CostModel(segments, shape, bench.memory).predict(begins)


def chosen(costs: CostModel) -> Partition:
    found = choose_stages(costs)
    assert found is not None  # without a limit
    return found


def schedules_table(comm: Communicator, args: argparse.Namespace) -> dict:
    """Every schedule on the first model."""
    name = next(iter(models(args)))
    bench = Bench(name, comm, args)
    first = comm.from_leader(lambda: bench.segments())
    begins = {s: partition(bench, first, s, None).begins for s in CHUNKS}
    turns = {"one process": bench.alone()}
    turns |= {f"{s}": bench.ours(s, begins[s]) for s in CHUNKS}
    for s in PLAIN:
        turns[f"{s}, even layers"] = bench.ours(s, bench.even(first, RANKS * CHUNKS[s]))
        turns[f"torch's {s}, plain"] = bench.plain(s, RANKS * CHUNKS[s])
    seconds, profiles, dropped = rounds(bench, turns, args)
    segments = combined(profiles, statistics.median)
    ideal = {s: partition(bench, segments, s, begins[s]).step_s for s in CHUNKS}
    return {"model": name, "seconds": seconds, "ideal": ideal, "dropped": dropped}


def partitions_table(comm: Communicator, args: argparse.Namespace) -> list[dict]:
    """Even layers and the speed plan of each model, predicted and measured, and memory."""
    rows = []
    for name in models(args):
        bench = Bench(name, comm, args)
        first = comm.from_leader(lambda bench=bench: bench.segments())
        cuts = {"even": bench.even(first, RANKS), "speed": partition(bench, first, "1f1b", None).begins}
        turns = {plan: bench.ours("1f1b", begins) for plan, begins in cuts.items()}
        seconds, profiles, dropped = rounds(bench, turns, args)
        segments = combined(profiles, statistics.median)
        planned = {plan: partition(bench, segments, "1f1b", begins) for plan, begins in cuts.items()}
        measured = comm.gather(bytes_of(turns["speed"]))
        rows.append(
            {
                "model": name,
                "cuts": cuts,
                "seconds": seconds,
                "predicted": {plan: each.step_s for plan, each in planned.items()},
                "bytes": {"predicted": planned["speed"].rank_bytes, "measured": measured},
                "dropped": dropped,
            }
        )
    return rows


def bytes_of(turn: Callable[[], None]) -> int:
    """Bytes of weights, gradients, two moments, what autograd keeps at its peak, and receive buffers."""
    pipeline = turn.pipeline  # type: ignore[attr-defined]
    _, size = peak_bytes(pipeline, turn)
    return 4 * sum(p.numel() * p.element_size() for p in pipeline.parameters()) + size


def solver_s(optimize: str, times: int) -> float:
    """1,000 segments over 64 stages, 256 microbatches, under a limit; the slowest of so many."""
    draw = random.Random(0)
    segments = [
        SegmentProfile(
            f"s{i}", (f"s{i}",), draw.random(), draw.random(), draw.randrange(10**6), draw.randrange(10**6), 4096
        )
        for i in range(1000)
    ]
    slowest = 0.0
    for _ in range(times):
        begun = time.perf_counter()
        choose_stages(CostModel(segments, PipelineShape("1f1b", 64, 1, 256)), optimize, 10**10)
        slowest = max(slowest, time.perf_counter() - begun)
    return slowest


def rank(args: argparse.Namespace) -> None:
    as_rank()
    with joined(read_world(os.environ)) as comm:
        result = {"schedules": schedules_table(comm, args), "partitions": partitions_table(comm, args)}
        if comm.is_leader:
            result["solver_s"] = {plan: solver_s(plan, min(args.rounds, SOLVED)) for plan in ("speed", "memory")}
            Path(args.result).write_text(json.dumps(result))
        dist.barrier()


def main() -> None:
    args = options(__doc__).parse_args()
    if args.result:
        rank(args)
        return
    result = on_ranks(__file__)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    show(args, result)


def show(args: argparse.Namespace, result: dict) -> None:
    table = result["schedules"]
    middle = {name: statistics.median(values) for name, values in table["seconds"].items()}
    print(f"torch {torch.__version__}, {RANKS} processes, {args.microbatches} microbatches of {MICROBATCH}")
    print(
        f"{table['model']}; {args.rounds} rounds of {args.steps} steps, {table['dropped']} dropped for foreign load\n"
    )
    print("| schedule | ms per step | quartiles | speed-up over one process | over the ideal |\n|---|---|---|---|---|")
    for name, values in table["seconds"].items():
        ideal = table["ideal"].get(name)
        over = f"{middle[name] / ideal:.3f}" if ideal else ""
        up = middle["one process"] / middle[name]
        print(f"| {name} | {middle[name] * 1e3:.0f} | {spread(values)} | {up:.2f} | {over} |")
    print("\n| same cuts | over torch's own, median of the rounds | 95 % interval |\n|---|---|---|")
    for name in PLAIN:
        seconds = table["seconds"]
        low, half, high = paired_ratio(seconds[f"{name}, even layers"], seconds[f"torch's {name}, plain"])
        print(f"| {name} | {half:.3f} | {low:.3f} - {high:.3f} |")
    print(
        "\n| model | even layers: predicted, measured ms | speed plan: predicted, measured ms | even / speed | "
        "MiB per rank: predicted | measured |\n|---|---|---|---|---|---|"
    )
    for row in result["partitions"]:
        found = {plan: statistics.median(values) for plan, values in row["seconds"].items()}
        times = [f"{row['predicted'][plan] * 1e3:.0f}, {found[plan] * 1e3:.0f}" for plan in ("even", "speed")]
        sizes = [", ".join(f"{size / 2**20:.1f}" for size in row["bytes"][key]) for key in ("predicted", "measured")]
        gain = found["even"] / found["speed"]
        print(f"| {row['model']} | {times[0]} | {times[1]} | {gain:.3f} | {sizes[0]} | {sizes[1]} |")
    took = ", ".join(f"{seconds:.2f} s for {optimize}" for optimize, seconds in result["solver_s"].items())
    print(f"\n1,000 segments over 64 stages are solved in {took} (the slowest of {min(args.rounds, SOLVED)}).")


if __name__ == "__main__":
    main()
