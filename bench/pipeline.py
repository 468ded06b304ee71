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
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.nn import functional

from algorun_train.models import gpt
from algorun_train.parallel.cut.any_module import cut
from algorun_train.parallel.layout.grid import grid
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.partition.cost_model import CostModel
from algorun_train.parallel.partition.costs import SegmentProfile
from algorun_train.parallel.partition.layers_to_stages import choose_stages
from algorun_train.parallel.partition.memory import MemoryModel, preallocated
from algorun_train.parallel.partition.profiling import combined, profile
from algorun_train.parallel.run.options import RunOptions
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.run.process_groups import join
from algorun_train.parallel.schedules import PipelineShape
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from bench.processes import start
from bench.quiet import FOREIGN, paired_ratio, quartiles, quiet_rounds

PLAIN = ("1f1b", "interleaved")  # also as torch has them, on the same cuts
RANKS, MICROBATCH = 2, 4
VOCABULARY, CONTEXT = 256, 128
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero-bubble": 2, "zbv": 2, "dualpipev": 2}


class Bench:
    """A GPT on two ranks."""

    def __init__(self, comm: Communicator, args: argparse.Namespace) -> None:
        spec = gpt.GptSpec(vocabulary=VOCABULARY, context=CONTEXT, width=args.width, depth=8, heads=4)
        self.comm, self.microbatches, self.model = comm, args.microbatches, gpt.build(spec, seed=0)
        torch.manual_seed(0)
        count = MICROBATCH * args.microbatches
        self.inputs, self.targets = torch.randint(0, VOCABULARY, (2, count, CONTEXT))
        self.cutting = cut(self.model, self.inputs[:MICROBATCH], stages=2 * RANKS)
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
        return [("embed", model.embed), *blocks, ("norm", model.norm), ("head", model.head)]

    def alone(self) -> Callable[[], None]:
        """All of it on rank 0, microbatch by microbatch, while rank 1 waits."""

        def step() -> None:
            if self.comm.rank:
                return
            for part, target in zip(self.inputs.split(MICROBATCH), self.targets.split(MICROBATCH), strict=True):
                (loss(self.model(part), target) / self.microbatches).backward()
            self.model.zero_grad(set_to_none=True)

        return step


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def even(segments: int, stages: int) -> tuple[int, ...]:
    """The first segment of each stage, with equal numbers of segments as near as that goes."""
    return tuple(segments * stage // stages for stage in range(stages))


def predicted(bench: Bench, segments: list[SegmentProfile], schedule: str) -> CostModel:
    return CostModel(segments, PipelineShape(schedule, RANKS, CHUNKS[schedule], bench.microbatches), bench.memory)


def fastest(costs: CostModel) -> tuple[int, ...]:
    """The first segment of each stage."""
    found = choose_stages(costs)
    assert found is not None  # without a limit
    return found.begins


def measured(comm: Communicator, args: argparse.Namespace) -> dict:
    """Seconds per step of each contender in each round, the ideal of each schedule, and the number of dropped rounds."""
    bench = Bench(comm, args)
    first = comm.from_leader(bench.segments)
    begins = {s: comm.from_leader(lambda s=s: fastest(predicted(bench, first, s))) for s in CHUNKS}
    turns = {"one process": bench.alone()}
    turns |= {s: bench.ours(s, begins[s]) for s in CHUNKS}
    for s in PLAIN:
        turns[f"{s}, even layers"] = bench.ours(s, bench.even(first, RANKS * CHUNKS[s]))
        turns[f"torch's {s}, plain"] = bench.plain(s, RANKS * CHUNKS[s])
    profiles, latest = [], []
    seconds, dropped = quiet_rounds(
        comm, turns, args.rounds, args.steps, args.foreign,
        before=lambda: latest.append(bench.segments()),
        kept=lambda: profiles.append(combined(comm.gather(latest[-1]))),
    )  # fmt: skip
    segments = combined(profiles, statistics.median)
    ideal = {s: predicted(bench, segments, s).predict(begins[s]).step_s for s in CHUNKS}
    return {"seconds": seconds, "ideal": ideal, "dropped": dropped}


def rank(args: argparse.Namespace) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with joined(read_world(os.environ)) as comm:
        result = measured(comm, args)
        if comm.is_leader:
            Path(args.result).write_text(json.dumps(result))
        dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 15), ("steps", 3), ("microbatches", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--foreign", type=float, default=FOREIGN, help="cores that others may use in a round that counts"
    )
    parser.add_argument("--width", type=int, default=192, help="of the model: a multiple of 4")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.result:
        rank(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        start(__file__, RANKS, [*sys.argv[1:], "--result", str(file)], SAGEMAKER_BASE_DIR=folder)
        result = json.loads(file.read_text())
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    show(args, result)


def show(args: argparse.Namespace, result: dict) -> None:
    seconds: dict[str, list[float]] = result["seconds"]
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"torch {torch.__version__}, {RANKS} processes, {args.microbatches} microbatches of {MICROBATCH}")
    print(f"{args.rounds} rounds of {args.steps} steps, {result['dropped']} dropped for foreign load\n")
    print("| schedule | ms per step | quartiles | speed-up over one process | over the ideal |\n|---|---|---|---|---|")
    for name, values in seconds.items():
        low, _, high = (value * 1e3 for value in quartiles(values))
        over = f"{middle[name] / result['ideal'][name]:.3f}" if name in result["ideal"] else ""
        up = middle["one process"] / middle[name]
        print(f"| {name} | {middle[name] * 1e3:.0f} | {low:.0f} - {high:.0f} | {up:.2f} | {over} |")
    print("\n| same cuts | over torch's own, median of the rounds | 95 % interval |\n|---|---|---|")
    for name in PLAIN:
        low, half, high = paired_ratio(seconds[f"{name}, even layers"], seconds[f"torch's {name}, plain"])
        print(f"| {name} | {half:.3f} | {low:.3f} - {high:.3f} |")


if __name__ == "__main__":
    main()
