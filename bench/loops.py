"""The entrypoint's loop beside a bare DDP loop, as turns that can be timed: for bench/ddp.py, and on GPUs for tests/gpu.

The bare loop gets its batches ready made, on the device. Ours does its whole work in the same time: order of samples,
gathering, augmentation, scaling of pixels, learning rate, loss sums, agreement on stops, reports to JSONL and
TensorBoard. So the ratio is the price of all that.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from algorun.inside.dissemination import Dissemination
from algorun.inside.stop_agreement import Agreement
from algorun.inside.stop_flag import StopFlag
from algorun_train.data.augment import Augment
from algorun_train.data.image_data import ImageData
from algorun_train.data.images import InMemory
from algorun_train.data.sampler import Batching, Epochs
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.learning_rate import learning_rate_schedule, set_learning_rate
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.progress import Position
from algorun_train.loop.sinks import Sinks
from algorun_train.loop.training_loop import LoopSetup, TrainingLoop
from algorun_train.models.image_models import build, specify
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.communicator import Communicator

WARM_UP = 10  # steps at the start of a round that do not count: bucket layouts, caches, frameworks' first calls
CLASSES = 10
Seconds = tuple[float, float]  # of wall clock and of this process's CPU, per step
Turn = Callable[[], Seconds]


def settle(device: torch.device) -> None:
    """Waits for the device: only then is the work of the steps before done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stamped:
    """Passes `count` items on and notes when each was asked for: the time between two is one whole turn of a loop.

    Timed are the turns from item WARM_UP to the last item. At both ends it waits for the device, and nowhere between.
    """

    def __init__(self, items: Iterator, count: int, device: torch.device) -> None:
        self._items, self._count, self._device = iter(items), count, device
        self.times: list[float] = []
        self.cpu_times: list[float] = []

    def __iter__(self) -> "Stamped":
        return self

    def __next__(self) -> object:
        if len(self.times) in (WARM_UP, self._count - 1):
            settle(self._device)
        self.times.append(time.perf_counter())
        self.cpu_times.append(time.process_time())
        return next(self._items)

    def step_s(self) -> Seconds:
        last = self._count - 1
        return tuple((times[last] - times[WARM_UP]) / (last - WARM_UP) for times in (self.times, self.cpu_times))


class Setting:
    """What all contenders share."""

    def __init__(self, args: argparse.Namespace, comm: Communicator, folder: Path) -> None:
        self.steps, self.comm, self.folder, self.side = args.steps + WARM_UP, comm, folder, args.side
        sizes = {"model": args.model, "image_size": args.side, "width": args.width, "depth": args.depth}
        sizes |= {"patch_size": args.patch_size, "heads": args.heads, "precision": args.precision}
        self.config = DdpJobOptions(batch_size=args.batch_size, epochs=1, **{k: v for k, v in sizes.items() if v})
        self.batching = Batching(args.batch_size, 1, comm.rank, comm.size)
        torch.manual_seed(0)
        count = self.steps * self.batching.global_batch
        self.pixels = torch.randint(0, 256, (count, args.side, args.side, 3), dtype=torch.uint8, device=comm.device)
        self.labels = torch.randint(0, CLASSES, (count,))
        scaled = self.pixels[: 8 * args.batch_size].permute(0, 3, 1, 2).float() / 127.5 - 1
        labels = self.labels.to(comm.device)
        self.ready = list(zip(scaled.split(args.batch_size), labels.split(args.batch_size), strict=False))

    def model(self) -> nn.Module:
        return build(specify(self.config, CLASSES, self.side), seed=0).to(self.comm.device)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = build_optimizer(self.config, model.parameters())
        set_learning_rate(optimizer, self.config.lr)
        return optimizer

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.comm.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            return functional.cross_entropy(model(images), labels)

    def batches(self) -> Stamped:
        ready = (self.ready[i % len(self.ready)] for i in range(self.steps))
        return Stamped(ready, self.steps, self.comm.device)


def bare(setting: Setting) -> Turn:
    """The loop of the tutorials."""
    device = setting.comm.device
    model = DistributedDataParallel(setting.model(), device_ids=[device.index] if device.type == "cuda" else None)
    optim = setting.optimizer(model)

    def turn() -> Seconds:
        stamped = setting.batches()
        for images, labels in stamped:
            loss = setting.loss(model, images, labels)
            optim.zero_grad()
            loss.backward()
            optim.step()
        return stamped.step_s()

    return turn


def ours(setting: Setting) -> Turn:
    """The entrypoint's loop, reports and all."""
    config, comm = setting.config, setting.comm
    model = setting.model()
    stepper = DataParallelSteps(model, setting.optimizer(model), comm, config)
    images = torch.zeros(config.batch_size, setting.side, setting.side, 3, device=comm.device).permute(0, 3, 1, 2)
    stepper.warm_up(images, torch.zeros(config.batch_size, dtype=torch.int64, device=comm.device))
    few = InMemory(setting.pixels[: comm.size], setting.labels[: comm.size])
    everything = InMemory(setting.pixels, setting.labels)
    augment = Augment(config.augment, config.seed, len(setting.labels), setting.side)
    names = tuple(str(i) for i in range(CLASSES))
    data = StampedData(everything, few, names, setting.side, "noise", augment, comm.device)
    sinks = Sinks(setting.folder, Position()) if comm.is_leader else None
    rates = learning_rate_schedule(config, setting.batching.global_batch)

    def turn() -> Seconds:
        agreement = Agreement(Dissemination(comm), StopFlag())
        report = (lambda r: sinks.write(r)) if sinks else (lambda r: None)
        setup = LoopSetup(config, comm, data, stepper, setting.batching, rates, agreement, lambda p: None, report)
        with Path(os.devnull).open("w") as nowhere:
            shown, sys.stdout = sys.stdout, nowhere
            try:
                TrainingLoop(setup, None).run()
            finally:
                sys.stdout = shown
        return data.stamped[-1].step_s()

    return turn


class StampedData(ImageData):
    """The entrypoint's data with a clock on its stream."""

    stamped: ClassVar[list[Stamped]] = []

    def training(self, epochs: Epochs, batching: Batching) -> Stamped:
        steps = self.train_count // batching.global_batch
        self.stamped.append(Stamped(super().training(epochs, batching), steps, self.device))
        return self.stamped[-1]


def in_turn(turns: dict[str, Turn], rounds: int, comm: Communicator) -> dict[str, list[Seconds]]:
    """Seconds per step of every contender in every round, in an order that changes and is equal on all ranks."""
    seconds: dict[str, list[Seconds]] = {name: [] for name in turns}
    shuffle = random.Random(0)
    for number in range(rounds + 1):
        for name in shuffle.sample(list(turns), len(turns)):
            comm.exchange([0.0])  # nobody starts a round while another rank is in the last one
            step_s = turns[name]()
            if number:  # round 0 warms up
                seconds[name].append(step_s)
    return seconds


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """The options of a `Setting`, but for its precision."""
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--model", default="vit", choices=("vit", "convnet"))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--side", type=int, default=8)
    for size in ("patch-size", "width", "depth", "heads"):
        parser.add_argument(f"--{size}", type=int)
