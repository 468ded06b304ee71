"""Step time of the ddp entrypoint's loop beside a bare DDP loop: one model, the same two gloo processes, rounds in turn.

    python bench/ddp.py [--rounds 31] [--steps 50] [--model vit] [--batch-size 32] [--side 8] [--width 64] [--depth 4]

bench/loops.py says what the loops do. CPU time is shown beside because it hardly feels foreign load.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from bench.loops import Seconds, Setting, add_sizes, bare, in_turn, ours
from bench.processes import start
from bench.quiet import quartiles

CONTENDERS = {"bare DDP loop": bare, "algorun ddp": ours}


def rank(args: argparse.Namespace) -> None:
    """One of the processes: all contenders take turns, in an order that changes and is equal on all ranks."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with joined(read_world(os.environ)) as comm, tempfile.TemporaryDirectory() as folder:
        setting = Setting(args, comm, Path(folder))
        turns = {name: make(setting) for name, make in CONTENDERS.items()}
        seconds = in_turn(turns, args.rounds, comm)
    if comm.is_leader:
        Path(args.result).write_text(json.dumps(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sizes(parser)
    parser.set_defaults(precision="fp32")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.result:
        rank(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        start(__file__, args.processes, [*sys.argv[1:], "--result", str(result)])
        table(args, json.loads(result.read_text()))


def table(args: argparse.Namespace, seconds: dict[str, list[Seconds]]) -> None:
    wall, cpu = ({name: [turn[i] for turn in turns] for name, turns in seconds.items()} for i in (0, 1))
    floor, cpu_floor = wall["bare DDP loop"], statistics.median(cpu["bare DDP loop"])
    print(
        f"{args.processes} gloo processes, {args.model}, {args.batch_size} images of {args.side} x {args.side} per rank"
    )
    print(f"torch {torch.__version__}, {args.rounds} rounds of {args.steps} steps in turn, medians of rounds;")
    print("throughput over the bare loop: ratio of medians, median of the ratios of each round, ratio of CPU times\n")
    print(
        "| loop | ms per step | quartiles | CPU ms | ratio of medians | by round | by CPU |"
        "\n|---|---|---|---|---|---|---|"
    )
    for name in CONTENDERS:
        low, middle, high = (value * 1e3 for value in quartiles(wall[name]))
        busy = statistics.median(cpu[name])
        ratio = statistics.median(floor) * 1e3 / middle
        paired = statistics.median(ours / theirs for ours, theirs in zip(floor, wall[name], strict=True))
        figures = f"{middle:.2f} | {low:.2f} - {high:.2f} | {busy * 1e3:.2f}"
        print(f"| {name} | {figures} | {ratio:.3f} | {paired:.3f} | {cpu_floor / busy:.3f} |")


if __name__ == "__main__":
    main()
