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

from algorun_train.common.errors import guarded, leave
from algorun_train.parallel import schedules
from algorun_train.parallel.cut.any_module import cut
from algorun_train.parallel.layout.grid import Grid
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.model.segments import Cutting
from algorun_train.parallel.partition.profiling import entries
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.options import RunOptions
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from tests.train.parallel.one_queue import Queue, listened, stuck
from tests.train.parallel.pipeline_models import ByHand, batch, loss_of, made, score, tuned

STEPS, EVALUATED, RECORDED = 3, 2, 3  # steps of a case; evaluation comes after the one, the other is timed
PER_MICROBATCH = 2


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
