"""What goes wrong with torch's parts put together in the obvious way, beside ours. Run by pipeline_cases.py on real ranks;
each function is called on all of them and returns what rank 0 reports."""

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleavedZeroBubble
from torch.nn.parallel import DistributedDataParallel

from algorun_train.common.errors import UserError
from algorun_train.parallel.cut.any_module import cut
from algorun_train.parallel.cut.uncut_model import UncutModel
from algorun_train.parallel.layout.grid import Grid
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.run import gradient_sum, process_groups
from algorun_train.parallel.run.gradient_sum import GradientSum, buckets_of
from algorun_train.parallel.run.options import RunOptions
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.ranks.communicator import Communicator
from tests.train.parallel.pipeline_cases import PER_MICROBATCH, furthest
from tests.train.parallel.pipeline_models import ByHand, batch, layered, loss_of, made

PARTS = 4


def whole_gradients(kind: str, parts: int) -> dict[str, torch.Tensor]:
    """Of the mean loss over one batch of so many microbatches."""
    model = made(kind)
    inputs, labels = batch(kind, parts * PER_MICROBATCH, 1)
    for part, target in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
        (loss_of(model(part), target) / parts).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def gradients(named: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in named}


def stages_in_ddp(comm: Communicator) -> dict[str, Any]:
    """Zero bubble over two replicas of two ranks: stages wrapped in DistributedDataParallel, and ours."""
    place = process_groups.join(Grid(2, 2), comm.rank, comm.device)
    inputs, labels = batch("hand", 2 * PARTS * PER_MICROBATCH, 1)
    mine = [tensor.chunk(2)[place.dp_rank] for tensor in (inputs, labels)]
    expected = whole_gradients("hand", 2 * PARTS)

    model = ModelStages(ByHand(layered(), inputs[:PER_MICROBATCH]), (0, 4))
    pipeline = Pipeline(model, place, RunOptions(microbatches=PARTS, schedule="zero-bubble"), loss_of)
    pipeline.train()
    pipeline.step(*mine)
    ours = furthest(gradients(pipeline.named_parameters()), expected)

    stage = ByHand(layered(), inputs[:PER_MICROBATCH]).stage(4 * place.pp_rank, 4 * place.pp_rank + 4)
    wrapped = DistributedDataParallel(stage, process_group=place.dp_group)
    part = PipelineStage(wrapped, place.pp_rank, 2, comm.device, group=place.pp_group)
    library = ScheduleInterleavedZeroBubble([part], PARTS, loss_fn=loss_of)
    library.step(*([mine[0]] if place.pp_rank == 0 else []), **({"target": mine[1]} if place.pp_rank else {}))
    found = {name: p.grad for name, p in stage.named_parameters() if p.grad is not None}
    theirs = furthest(found, expected) if len(found) == len(list(stage.parameters())) else float("inf")
    rows = comm.gather((ours, theirs))
    return {"ours": max(row[0] for row in rows), "theirs": max(row[1] for row in rows)}


def stages_without_shapes(comm: Communicator) -> dict[str, Any]:
    """BatchNorm's running means after a step, where memory that nobody wrote to holds NaN: a PipelineStage that finds
    its shapes out by itself, and ours."""
    place = process_groups.join(Grid(1, 2), comm.rank, comm.device)
    inputs, labels = batch("convnet", PARTS * PER_MICROBATCH, 1)
    labels = labels * 0

    def model() -> nn.Sequential:
        whole = made("convnet")
        ends = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), whole.head)
        return nn.Sequential(nn.Sequential(whole.stem, whole.norm), nn.Sequential(*whole.blocks, ends))

    def means(module: nn.Module) -> torch.Tensor:
        norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
        return torch.cat([norm.running_mean for norm in norms])

    unsplit = model().train()
    for part in inputs.chunk(PARTS):
        unsplit(part)
    expected = means(unsplit[comm.rank])

    given = ByHand(model(), inputs[:PER_MICROBATCH])
    with torch.no_grad():
        between = unsplit[0](inputs[:PER_MICROBATCH])
    shapes = [[inputs[:PER_MICROBATCH]], [between], [unsplit(inputs[:PER_MICROBATCH])]]
    entries = tuple(tuple(TensorSpec.of(tensor) for tensor in tensors) for tensors in shapes)
    torch.use_deterministic_algorithms(True)  # fills what torch.empty makes with NaN
    try:
        pipeline = Pipeline(ModelStages(given, (0, 1), entries), place, RunOptions(microbatches=PARTS), loss_of)
        pipeline.train()
        pipeline.step(inputs, labels)
        ours = float((means(pipeline.stages[comm.rank]) - expected).abs().max())
        alone = model()[comm.rank].train()
        part = PipelineStage(alone, comm.rank, 2, comm.device, group=place.pp_group)
        library = Schedule1F1B(part, PARTS, loss_fn=loss_of)
        library.step(*([inputs] if comm.rank == 0 else []), **({"target": labels} if comm.rank else {}))
        theirs = float((means(alone) - expected).abs().max())
    finally:
        torch.use_deterministic_algorithms(False)
    rows = comm.gather((ours, theirs))
    return {"ours": [row[0] for row in rows], "theirs": [row[1] for row in rows]}


def batches_of_other_shapes(comm: Communicator) -> dict[str, Any]:
    """What every rank says to batches that do not fit; a batch that fits is trained on afterwards."""
    place = process_groups.join(Grid(1, 2), comm.rank, comm.device)
    inputs, labels = batch("hand", PARTS * PER_MICROBATCH, 1)
    model = ModelStages(ByHand(layered(), inputs[:PER_MICROBATCH]), (0, 4))
    pipeline = Pipeline(model, place, RunOptions(microbatches=PARTS), loss_of)
    said = []
    for rows, columns in ((7, 12), (6, 12), (16, 12), (8, 11)):
        for call in (pipeline.step, lambda *given: pipeline.evaluate(*given, loss_of)):
            try:
                call(torch.zeros(rows, columns), torch.zeros(rows, dtype=torch.int64))
                said.append("nothing")
            except UserError as error:
                said.append(str(error))
    pipeline.step(inputs, labels)
    difference = furthest(gradients(pipeline.named_parameters()), whole_gradients("hand", PARTS))
    return {"said": comm.gather(said), "difference": max(comm.gather(difference))}


def copies_that_go_apart(comm: Communicator) -> dict[str, Any]:
    """What the ranks of two copies say when one of them is changed, by no more than rounding and then by more: at the next
    step, and not before. `rows` are the first weight after each step."""
    place = process_groups.join(Grid(1, 2), comm.rank, comm.device)
    inputs, labels = batch("tied gpt", PARTS * PER_MICROBATCH, 1)
    cutting = cut(made("tied gpt"), inputs[:PER_MICROBATCH], stages=2)
    model = ModelStages(cutting, (0, len(cutting.segments) // 2))
    pipeline = Pipeline(model, place, RunOptions(microbatches=PARTS), loss_of)
    weight = dict(pipeline.named_parameters())["embed.tokens.weight"]
    said, values = [], []
    for change in (0.0, 1e-6 * comm.rank, 0.01 * comm.rank):
        weight.data[0, 0] += change
        try:
            pipeline.step(inputs, labels)
            said.append("")
        except UserError as error:
            said.append(str(error))
        values.append(weight[0, 0].item())
    return {"said": comm.gather(said), "rows": comm.gather(values)}


def sums_of_gradients(comm: Communicator) -> dict[str, Any]:
    """GradientSum over two ranks with small buckets; the last layer is used by rank 1 alone, a frozen one by nobody."""
    group = dist.new_group([0, 1])
    rows = []
    for passes, bucket in ((2, 100), (2, 10**9), (None, 100)):
        torch.manual_seed(0)
        shared, other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), nn.Linear(4, 3)
        frozen = nn.Linear(4, 3).requires_grad_(False)
        parameters = [*shared.parameters(), *other.parameters(), *frozen.parameters()]
        with mock.patch.object(gradient_sum, "BUCKET_BYTES", bucket):
            total = GradientSum(parameters, group, passes)

        def passed(rank: int, turn: int, shared: nn.Module = shared, other: nn.Module = other) -> torch.Tensor:
            inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * rank + turn))
            return (shared(inputs) + (other(inputs) if rank else 0)).square().mean()

        for step in range(2):  # a step begins where the one before it has ended
            for turn in range(2):
                passed(comm.rank, 2 * step + turn).backward()
            total.finish()
            found = [None if p.grad is None else p.grad.clone() for p in parameters]
            wanted = torch.autograd.grad(
                sum(passed(rank, 2 * step + turn) for rank in range(2) for turn in range(2)),
                [p for p in parameters if p.requires_grad],
            )
            pairs = zip(found, wanted, strict=False)
            rows.append(
                {
                    "buckets": len(buckets_of(parameters, bucket)),
                    "difference": max(float((one - two).abs().max()) for one, two in pairs),
                    "frozen": [each is None for each in found[-2:]],
                }
            )
            for parameter in parameters:
                parameter.grad = None
    return {"rows": comm.gather(rows)}


def sums_of_a_weight_of_two_stages(comm: Communicator) -> dict[str, Any]:
    """GradientSum over two replicas of a rank with two stages that use one weight: each pass adds to it twice."""
    group = dist.new_group([0, 1])
    weight, other = (nn.Parameter(torch.zeros(3)) for _ in range(2))
    shared = mock.Mock(uses={weight: 2})
    with mock.patch.object(gradient_sum, "BUCKET_BYTES", 4):
        total = GradientSum([other, weight], group, 2, shared=shared)
    for turn in range(2):
        for stage in range(2):
            ((10 * turn + stage + 100 * comm.rank) * weight).sum().backward()
        other.sum().backward()
    total.finish()
    return {"rows": comm.gather([weight.grad.tolist(), other.grad.tolist(), total.due])}


def replicas_of_a_whole_model(comm: Communicator) -> dict[str, Any]:
    """Two pipelines of one rank each, against DistributedDataParallel."""
    place = process_groups.join(Grid(2, 1), comm.rank, comm.device)
    inputs, labels = batch("gpt", 2 * PARTS * PER_MICROBATCH, 1)
    mine = [tensor.chunk(2)[comm.rank] for tensor in (inputs, labels)]
    model = made("gpt")
    with torch.no_grad():
        example = inputs[:PER_MICROBATCH]
        cutting = UncutModel(model, example, (TensorSpec.of(model(example)),))
    pipeline = Pipeline(ModelStages(cutting, (0,)), place, RunOptions(microbatches=PARTS), loss_of)
    pipeline.train()
    pipeline.step(*mine)

    theirs = DistributedDataParallel(made("gpt"), process_group=place.dp_group)
    with theirs.no_sync():
        pairs = list(zip(mine[0].chunk(PARTS), mine[1].chunk(PARTS), strict=True))
        for part, target in pairs[:-1]:
            (loss_of(theirs(part), target) / PARTS).backward()
    (loss_of(theirs(pairs[-1][0]), pairs[-1][1]) / PARTS).backward()
    ours, expected = gradients(pipeline.named_parameters()), gradients(theirs.module.named_parameters())
    return {"ddp": max(comm.gather(furthest(ours, expected))), "names": sorted(ours) == sorted(expected)}
