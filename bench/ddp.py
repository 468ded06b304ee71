"""Step time of the ddp entrypoint's loop beside a bare DDP loop, accelerate and Lightning: one model, the same two gloo
processes, rounds in turn.

    python bench/ddp.py [--rounds 31] [--steps 50] [--model vit] [--batch-size 32] [--side 8] [--width 64] [--depth 4]

Needs the packages of the entrypoint; accelerate and lightning are measured where they are installed. The bare loop,
accelerate and Lightning get their batches ready made. Ours does its whole work in the same time: order of samples,
gathering, augmentation, scaling of pixels, learning rate, loss sums, agreement on stops, reports to JSONL and
TensorBoard. So the ratio is the price of all that. CPU time is shown beside because it hardly feels foreign load.
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from algorun.agreement import Agreement
from algorun.flag import StopFlag
from bench.quiet import quartiles
from bench.ranks import start
from train.config import DdpConfig
from train.data import Data
from train.data.augment import Augment
from train.data.images import InMemory
from train.data.sampler import Sharding
from train.loop import Loop, Parts, Position
from train.mesh import Mesh, joined, read_world
from train.models import build, specify
from train.optim import optimizer, schedule
from train.parallel.ddp import DataParallel
from train.sinks import Sinks

WARM_UP = 10  # steps at the start of a round that do not count: bucket layouts, caches, frameworks' first calls
CLASSES = 10
Seconds = tuple[float, float]  # of wall clock and of this process's CPU, per step
Turn = Callable[[], Seconds]


class Stamped:
    """Passes items on and notes when each was asked for: the time between two is one whole turn of a loop."""

    def __init__(self, items: Iterator) -> None:
        self._items = iter(items)
        self.times: list[float] = []
        self.cpu_times: list[float] = []

    def __iter__(self) -> "Stamped":
        return self

    def __next__(self) -> object:
        self.times.append(time.perf_counter())
        self.cpu_times.append(time.process_time())
        return next(self._items)

    def step_s(self) -> Seconds:
        steps = len(self.times) - 1 - WARM_UP
        return tuple((times[-1] - times[WARM_UP]) / steps for times in (self.times, self.cpu_times))


class Setting:
    """What all contenders share."""

    def __init__(self, args: argparse.Namespace, mesh: Mesh, folder: Path) -> None:
        self.steps, self.mesh, self.folder, self.side = args.steps + WARM_UP, mesh, folder, args.side
        sizes = {"model": args.model, "image_size": args.side, "width": args.width, "depth": args.depth}
        self.config = DdpConfig(batch_size=args.batch_size, epochs=1, **{k: v for k, v in sizes.items() if v})
        self.sharding = Sharding(args.batch_size, 1, mesh.rank, mesh.size)
        torch.manual_seed(0)
        count = self.steps * self.sharding.global_batch
        self.pixels = torch.randint(0, 256, (count, args.side, args.side, 3), dtype=torch.uint8)
        self.labels = torch.randint(0, CLASSES, (count,))
        scaled = self.pixels[: 8 * args.batch_size].permute(0, 3, 1, 2).float() / 127.5 - 1
        ready = zip(scaled.split(args.batch_size), self.labels.split(args.batch_size), strict=False)
        self.ready = list(ready)

    def model(self) -> nn.Module:
        return build(specify(self.config, CLASSES, self.side), seed=0)

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (self.ready[i % len(self.ready)] for i in range(self.steps))


def bare(setting: Setting) -> Turn:
    """The loop of the tutorials."""
    model = DistributedDataParallel(setting.model())
    optim = optimizer(setting.config, model.parameters())

    def turn() -> Seconds:
        stamped = Stamped(setting.batches())
        for images, labels in stamped:
            loss = functional.cross_entropy(model(images), labels)
            optim.zero_grad()
            loss.backward()
            optim.step()
        return stamped.step_s()

    return turn


def ours(setting: Setting) -> Turn:
    """The entrypoint's loop, reports and all."""
    config, mesh = setting.config, setting.mesh
    model = setting.model()
    stepper = DataParallel(model, optimizer(config, model.parameters()), mesh, config)
    stepper.warm_up(setting.side, config.batch_size)
    few = InMemory(setting.pixels[: mesh.size], setting.labels[: mesh.size])
    everything = InMemory(setting.pixels, setting.labels)
    augment = Augment(config.augment, config.seed, len(setting.labels), setting.side)
    names = tuple(str(i) for i in range(CLASSES))
    data = StampedData(everything, few, names, setting.side, "noise", augment, mesh.device)
    sinks = Sinks(setting.folder, Position()) if mesh.is_leader else None
    rates = schedule(config, setting.sharding.global_batch)

    def turn() -> Seconds:
        agreement = Agreement(mesh, StopFlag())
        report = (lambda r: sinks.write(r)) if sinks else (lambda r: None)
        parts = Parts(config, mesh, data, stepper, setting.sharding, rates, agreement, lambda p: None, report)
        with Path(os.devnull).open("w") as nowhere:
            shown, sys.stdout = sys.stdout, nowhere
            try:
                Loop(parts, None).run()
            finally:
                sys.stdout = shown
        return data.stamped[-1].step_s()

    return turn


class StampedData(Data):
    """The entrypoint's data with a clock on its stream."""

    stamped: ClassVar[list[Stamped]] = []

    def training(self, *args: object, **kwargs: object) -> Stamped:
        self.stamped.append(Stamped(super().training(*args, **kwargs)))
        return self.stamped[-1]


def accelerate(setting: Setting) -> Turn:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    plain = setting.model()
    model, optim = accelerator.prepare(plain, optimizer(setting.config, plain.parameters()))

    def turn() -> Seconds:
        stamped = Stamped(setting.batches())
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
            return optimizer(setting.config, self.parameters())

    class Source:
        def __iter__(self) -> Stamped:
            self.stamped = Stamped(setting.batches())
            return self.stamped

    module = Module()

    def turn() -> Seconds:
        source = Source()
        strategy = DDPStrategy(process_group_backend="gloo", cluster_environment=TorchElasticEnvironment())
        trainer = pl.Trainer(
            accelerator="cpu",
            strategy=strategy,
            devices=setting.mesh.size,
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
    with joined(read_world(os.environ)) as mesh, tempfile.TemporaryDirectory() as folder:
        setting = Setting(args, mesh, Path(folder))
        turns = {name: make(setting) for name, make in present().items()}
        seconds: dict[str, list[Seconds]] = {name: [] for name in turns}
        shuffle = random.Random(0)
        for number in range(args.rounds + 1):
            for name in shuffle.sample(list(turns), len(turns)):
                mesh.exchange([0.0])  # nobody starts a round while another rank is in the last one
                step_s = turns[name]()
                if number:  # round 0 warms up
                    seconds[name].append(step_s)
    if mesh.is_leader:
        Path(args.result).write_text(json.dumps(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--model", default="vit", choices=("vit", "convnet"))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--side", type=int, default=8)
    parser.add_argument("--width", type=int)
    parser.add_argument("--depth", type=int)
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
