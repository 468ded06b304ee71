"""Pipelines beside the unsplit model, on real ranks: `pipeline_cases.py JSON`, where the JSON lists the cases to run.

Each rank trains its stages for a few steps, and the whole model beside them; rank 0 leaves the largest differences over
all ranks in results.json of its base folder, one row for each case.
"""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from algorun_train.errors import guarded, leave
from algorun_train.models.gpt import GptSpec, build
from algorun_train.parallel import schedules
from algorun_train.parallel.cut.any_module import cut
from algorun_train.parallel.grid import Grid
from algorun_train.parallel.model_stages import ModelStages
from algorun_train.parallel.options import RunOptions
from algorun_train.parallel.partition.profiling import entries
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.segments import Cutting, SegmentSpec, TensorSpec
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from tests.train.parallel.one_queue import Queue, listened, stuck

STEPS, EVALUATED, RECORDED = 5, 2, 3  # steps of a case; evaluation comes after the one, the other is timed
PER_MICROBATCH = 2
CLASSES, SIDE, CONTEXT, WIDTH = 7, 6, 5, 12


@dataclass(frozen=True, slots=True)
class Case:
    """One pipeline; `dp` replicas of `pp` ranks are all ranks of the program."""

    model: str
    schedule: str
    dp: int
    pp: int
    microbatches: int
    chunks: int = 1
    placement: str = "cluster"
    clip: float = 0.0
    recompute: bool = False
    bf16: bool = False

    def __str__(self) -> str:
        changed = [f"{k}={v}" for k, v in asdict(self).items() if v != Case.__dataclass_fields__[k].default]
        return " ".join(changed)


class Residual(nn.Module):
    """Convolutions and BatchNorm beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width, momentum=None)
        self.act1, self.act2 = nn.ReLU(inplace=True), nn.ReLU(inplace=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.act2(self.norm2(self.conv2(self.act1(self.norm1(self.conv1(images))))) + images)


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(*(Residual(8) for _ in range(3)))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(torch.relu(self.norm(self.stem(images)))).mean(dim=(2, 3)))


class Turned(nn.Module):
    """Mixes the rows; neither its output nor the gradient of its input is contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, square: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mix(square.transpose(1, 2))).transpose(1, 2)


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(*(Turned() for _ in range(5))), nn.Linear(WIDTH, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(rows[:, :, None] * rows[:, None, :]).mean(dim=2))


class Thrice(nn.Module):
    """The first, a middle and the last of its layers have one weight, in the last transposed; so has the head, frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(8))
        self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks[4][0].weight = self.blocks[0][0].weight
        self.blocks[5][0].bias = self.blocks[0][0].bias  # not in all stages that the weight is in
        self.head.weight = self.blocks[1][0].weight
        self.head.weight.requires_grad_(False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            rows = torch.tanh(block(rows))
        return self.head(functional.linear(self.out(rows), self.blocks[0][0].weight.t()))[:, :CLASSES]


def layered() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh()) for _ in range(7)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def in_place() -> nn.Sequential:
    """Stages begin by changing what they have received."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.ELU(inplace=True), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(6)]
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers, nn.Linear(WIDTH, CLASSES))


class ByHand:
    """A `Cutting` that somebody wrote for a model of his own: one segment for each layer."""

    def __init__(self, model: nn.Sequential, example: torch.Tensor) -> None:
        self._model, self.example = model, (example,)
        rows = len(example)
        self.segments = tuple(
            SegmentSpec(
                str(number), (str(number),), tuple(f"{number}.{name}" for name, _ in layer.named_parameters()),
                (TensorSpec((rows, WIDTH), torch.float32),),
            )
            for number, layer in enumerate(model)
        )  # fmt: skip
        self.output = (TensorSpec((rows, CLASSES), torch.float32),)

    def stage(self, begin: int, end: int) -> nn.Module:
        stage = nn.Sequential()
        for number in range(begin, end):
            stage.add_module(str(number), self._model[number])
        return stage


def made(kind: str) -> nn.Module:
    """The whole model, equal at each call."""
    if kind in ("gpt", "tied gpt"):
        tied = kind == "tied gpt"
        spec = GptSpec(vocabulary=CLASSES, context=CONTEXT, width=WIDTH, depth=4, heads=2, tied=tied)
        model: nn.Module = build(spec, seed=0)
        for parameter in model.parameters():  # the small ones of GPT-2 would hide differences
            parameter.data.mul_(5)
        return model
    torch.manual_seed(0)
    return {"convnet": Convnet, "squares": Squares, "thrice": Thrice, "hand": layered, "in place": in_place}[kind]()


def batch(kind: str, samples: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of step `number`."""
    random = torch.Generator().manual_seed(number)
    if kind in ("gpt", "tied gpt"):
        tokens = torch.randint(CLASSES, (samples, CONTEXT + 1), generator=random)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    shape = (samples, 3, SIDE, SIDE) if kind == "convnet" else (samples, WIDTH)
    return torch.randn(shape, generator=random), torch.randint(CLASSES, (samples,), generator=random)


def loss_of(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, -2).float(), labels.flatten())


def score(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.stack([loss_of(output, labels), (output.argmax(-1) == labels).sum().float()])


def tuned(parameters: Any) -> torch.optim.Optimizer:
    """Not Adam: it makes whole steps of gradients that are zero but for rounding (those of attention's key bias)."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """The collectives that this rank takes part in meanwhile."""
    found: list[str] = []

    def counting(name: str) -> Any:
        original = getattr(dist, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            found.append(name)
            return original(*args, **kwargs)

        return mock.patch.object(dist, name, call)

    with counting("all_reduce"), counting("all_gather"), counting("broadcast"):
        yield found


@dataclass(frozen=True, slots=True)
class Trace:
    """What a training left: gradients and their norm at the first step, state at the end, losses and scores; and how
    many collectives a step took."""

    gradients: dict[str, torch.Tensor]
    norm: torch.Tensor | None
    losses: list[torch.Tensor]
    scores: torch.Tensor | None
    state: dict[str, torch.Tensor]
    collectives: int = 0


@functools.cache
def unsplit(kind: str, parts: int, clip: float, bf16: bool) -> Trace:
    """The whole model on the whole batch, microbatch after microbatch."""
    model = made(kind).train()
    optimizer = tuned(model.parameters())
    gradients, norm, scores, losses = {}, None, None, []
    for step in range(1, STEPS + 1):
        inputs, labels = batch(kind, parts * PER_MICROBATCH, step)
        total = torch.zeros(())
        for part, target in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                output = model(part)
            loss = loss_of(output, target)
            (loss / parts).backward()
            total += loss.detach()
        losses.append(total)
        if step == 1:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
        if clip:
            found = nn.utils.clip_grad_norm_(model.parameters(), clip)
            norm = found if step == 1 else norm
        optimizer.step()
        optimizer.zero_grad()
        if step == EVALUATED:
            model.eval()
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                outputs = [model(part) for part in inputs.chunk(parts)]
                rows = [score(output, target) for output, target in zip(outputs, labels.chunk(parts), strict=True)]
            scores = torch.stack(rows).sum(0)
            model.train()
    return Trace(gradients, norm, losses, scores, model.state_dict())


def cutting_of(case: Case, model: nn.Module) -> Cutting:
    example, _ = batch(case.model, PER_MICROBATCH, 0)
    if isinstance(model, nn.Sequential):
        return ByHand(model, example)
    return cut(model, example, stages=case.pp * case.chunks)


def begins_of(segments: int, stages: int) -> tuple[int, ...]:
    return tuple(number * segments // stages for number in range(stages))


def pipelined(case: Case, comm: Communicator) -> tuple[Pipeline, Trace, bool, Queue]:
    """The stages of this rank, what their training left, whether they ran in the order of the schedule, and the
    messages of an evaluation."""
    grid = Grid(case.dp, case.pp, case.placement)
    place = process_groups.join(grid, comm.rank, comm.device)
    cutting = cutting_of(case, made(case.model))
    stages = case.pp * case.chunks
    specs = tuple(entries(cutting, comm.device, "bf16")) if case.bf16 else ()
    options = RunOptions(
        microbatches=case.microbatches, schedule=case.schedule, precision="bf16" if case.bf16 else "fp32",
        recompute=case.recompute,
    )  # fmt: skip
    begins = begins_of(len(cutting.segments), stages)
    pipeline = Pipeline(ModelStages(cutting, begins, specs), place, options, loss_of)
    optimizer = tuned(pipeline.parameters())
    gradients, norm, scores, losses, ordered, messages, collectives = {}, None, None, [], False, [], 0
    pipeline.train()
    for step in range(1, STEPS + 1):
        inputs, labels = batch(case.model, case.dp * case.microbatches * PER_MICROBATCH, step)
        mine = [tensor.chunk(case.dp)[place.dp_rank] for tensor in (inputs, labels)]
        if step == RECORDED:
            pipeline.recorder.start()
        with counted() as found:
            losses.append(pipeline.step(*mine).clone())
        collectives = len(found)
        if step == RECORDED:
            orders = schedules.orders(case.schedule, case.pp, case.chunks, case.microbatches)
            ordered = tuple(span.action for span in pipeline.recorder.stop()) == orders[place.pp_rank]
        if step == 1:
            gradients = {name: p.grad.clone() for name, p in pipeline.named_parameters() if p.requires_grad}
        if case.clip:
            norm_now = pipeline.clip(case.clip)
            norm = norm_now if step == 1 else norm
        optimizer.step()
        optimizer.zero_grad()
        if step == EVALUATED:
            pipeline.eval()
            with listened(moves=True) as messages:
                scores = pipeline.evaluate(*mine, score)
            pipeline.train()
    return pipeline, Trace(gradients, norm, losses, scores, pipeline.state_dict(), collectives), ordered, messages


def furthest(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    return max((float((tensor.float() - two[name].float()).abs().max()) for name, tensor in one.items()), default=0.0)


def compared(case: Case, comm: Communicator) -> dict[str, Any]:
    """The largest differences over all ranks."""
    whole = unsplit(case.model, case.dp * case.microbatches, case.clip, case.bf16)
    pipeline, ours, ordered, messages = pipelined(case, comm)
    scores = torch.zeros(2) if ours.scores is None else ours.scores
    sums = torch.cat([torch.stack(ours.losses), scores])
    dist.all_reduce(sums)
    row = {
        "gradients": furthest(ours.gradients, whole.gradients),
        "norm": 0.0 if ours.norm is None else abs(float(ours.norm) - float(whole.norm)),
        "state": furthest(ours.state, whole.state),
        "losses": float((sums[:STEPS] - torch.stack(whole.losses)).abs().max()),
        "scores": float((sums[STEPS:] - whole.scores).abs().max()),
    }
    # What is saved of each stage; gradients of those weights, of which copies are not counted.
    copies = {index: pipeline.weights.saved_by_earlier_stage(index) for index in pipeline.stages}
    saved = [n for i, stage in pipeline.stages.items() for n in stage.module.state_dict() if n not in copies[i]]
    graded = [name for name in ours.gradients if name in saved]
    rows = comm.gather((row, ordered, saved, graded, pipeline.axes.dp_rank))
    every = sorted(name for _, _, names, _, dp_rank in rows if dp_rank == 0 for name in names)
    heard = comm.gather((pipeline.axes.dp_rank, pipeline.axes.pp_rank, messages))
    graded = sorted(name for _, _, _, names, dp_rank in rows if dp_rank == 0 for name in names)
    held = comm.gather((ours.collectives, {name: tensor.numpy().tobytes() for name, tensor in ours.state.items()}))
    bits: dict[str, set[bytes]] = {}
    for name, data in (item for _, state in held for item in state.items()):
        bits.setdefault(name, set()).add(data)
    return {key: max(each[0][key] for each in rows) for key in row} | {
        "stuck": stuck([messages for _, messages in sorted((p, m) for d, p, m in heard if d == 0)]),
        "ordered": all(each[1] for each in rows),
        "complete": every == sorted(whole.state) and graded == sorted(whole.gradients),
        "holders": {name: sum(name in state for _, state in held) for name in bits},
        "apart": sorted(name for name, found in bits.items() if len(found) > 1),
        "collectives": [count for count, _ in held],
    }


def main(argv: list[str]) -> int:
    results = []
    sys.modules["pipeline_cases"] = sys.modules["__main__"]
    with joined(read_world(os.environ)) as comm:
        for case in json.loads(argv[0]):
            print(case, flush=True)
            if isinstance(case, str):
                from tests.train.parallel import pipeline_traps

                results.append(getattr(pipeline_traps, case)(comm))
            else:
                results.append(compared(Case(**case), comm))
        if comm.is_leader:
            Path(os.environ["SAGEMAKER_BASE_DIR"], "results.json").write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    leave(guarded(main))
