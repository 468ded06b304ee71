"""Step time of the ddp entrypoint's loop beside a bare DDP loop, accelerate and Lightning: one model, the same two gloo
processes, rounds in turn.

    python bench/ddp.py [--rounds 31] [--steps 50] [--model vit] [--batch-size 32] [--side 8] [--width 64] [--depth 4]

Needs the packages of the entrypoint; accelerate and lightning are measured where they are installed. bench/loops.py
says what the loops do. CPU time is shown beside because it hardly feels foreign load.
"""

import argparse
import importlib.util
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
from torch.nn import functional

from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from bench.loops import Seconds, Setting, Stamped, Turn, add_sizes, bare, in_turn, ours
from bench.quiet import quartiles
from bench.ranks import start


def accelerate(setting: Setting) -> Turn:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    plain = setting.model()
    model, optim = accelerator.prepare(plain, setting.optimizer(plain))

    def turn() -> Seconds:
        stamped = setting.batches()
        for images, labels in stamped:
            loss = functional.cross_entropy(model(images), labels)
            optim.zero_grad()
            accelerator.backward(loss)
            optim.step()
        return stamped.step_s()

    return turn


def lightning(setting: Setting) -> Turn:
    import logging

    import lightning.pytorch as pl
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = setting.model()

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
            images, labels = batch
            return functional.cross_entropy(self.inner(images), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return setting.optimizer(self)

    class Source:
        def __iter__(self) -> Stamped:
            self.stamped = setting.batches()
            return self.stamped

    module = Module()

    def turn() -> Seconds:
        source = Source()
        strategy = DDPStrategy(process_group_backend="gloo", cluster_environment=TorchElasticEnvironment())
        trainer = pl.Trainer(
            accelerator="cpu",
            strategy=strategy,
            devices=setting.comm.size,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        trainer.fit(module, source)
        return source.stamped.step_s()

    return turn


CONTENDERS = {"bare DDP loop": bare, "algorun ddp": ours, "accelerate": accelerate, "Lightning": lightning}


def present() -> dict[str, Callable[[Setting], Turn]]:
    absent = {"accelerate": "accelerate", "Lightning": "lightning"}
    return {n: c for n, c in CONTENDERS.items() if n not in absent or importlib.util.find_spec(absent[n])}


def rank(args: argparse.Namespace) -> None:
    """One of the processes: all contenders take turns, in an order that changes and is equal on all ranks."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with joined(read_world(os.environ)) as comm, tempfile.TemporaryDirectory() as folder:
        setting = Setting(args, comm, Path(folder))
        turns = {name: make(setting) for name, make in present().items()}
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
        if name not in seconds:
            print(f"| {name} | not installed | | | | | |")
            continue
        low, middle, high = (value * 1e3 for value in quartiles(wall[name]))
        busy = statistics.median(cpu[name])
        ratio = statistics.median(floor) * 1e3 / middle
        paired = statistics.median(ours / theirs for ours, theirs in zip(floor, wall[name], strict=True))
        figures = f"{middle:.2f} | {low:.2f} - {high:.2f} | {busy * 1e3:.2f}"
        print(f"| {name} | {figures} | {ratio:.3f} | {paired:.3f} | {cpu_floor / busy:.3f} |")


if __name__ == "__main__":
    main()
