"""A step function for one signature: traced, cut, and ready to run on this rank."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from algorun_smdistributed.ranks.rank_group import RankGroup
from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError
from algorun_train.parallel.layout.layout import Layout
from algorun_train.parallel.partition.costs import Partition, SegmentProfile

from . import cutting, partitioning, slots
from .arguments import KerasStepFunction, StepCall
from .drawn_schedule import DrawnSchedule
from .placing import StagePlacement
from .positions import Owners, ancestors
from .running import StepRun
from .saved_partition import SavedPartition, same_job
from .tracing import TracedStep, trace

Tensor = Any  # TensorFlow's objects have no types for mypy
Variable = Any


@dataclass(slots=True)
class KerasJob:
    """The job as steps see it. Made by smp.init()."""

    world: RankGroup
    pipeline: RankGroup
    replicas: RankGroup
    """the ranks that have the same stage"""
    layout: Layout
    optimize: str
    saved_partition: SavedPartition
    """the measured partition, on rank 0"""
    drawn: DrawnSchedule | None = None
    """the step that is drawn, in the first replica"""
    model: Any = None
    """the script's smp.DistributedModel"""
    placement: StagePlacement | None = None
    optimizers: list[Any] = field(default_factory=list)
    """those whose variables are those of the whole model, each on its rank"""
    default_partition: int | None = None
    """where smp.partition counts: the partition of layers outside of it; None: layers are placed by measuring them"""
    partitions: list[int] = field(default_factory=list)
    """those of the smp.partition contexts that are open"""
    is_partitioned: bool = False
    """after the first call of a step function"""
    hooks: list[Callable[[], object]] = field(default_factory=list)
    """what the script wants called then"""
    tracing: bool = False
    """while a step function runs with symbolic tensors; the model then shows all of its variables"""
    equal: set[int] = field(default_factory=set)
    """ids of the handles of variables that replicas have in common"""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value of what the function returns, by its tensors' numbers among those that this rank gets."""

    tensors: tuple[int, ...]
    is_slices: bool
    value: Given = None
    """of a leaf without tensors"""
    is_elsewhere: bool = False
    """the gradient of a variable of another rank"""
    is_gradient: bool = False


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One signature of a step function on this rank."""

    traced: TracedStep
    structure: Result
    """of what the function returns, with a Leaf for each value"""
    tensors: tuple[Tensor, ...]
    """symbolic: those that this rank gets for each microbatch"""
    run: Callable[[Sequence[Sequence[Tensor]]], list[list[Tensor]]]
    """the tensors of each microbatch, from the arguments of each"""
    changed: tuple[Variable, ...]
    """variables of this rank that a step may change"""
    read: tuple[Variable, ...]
    """variables of this rank that a step reads"""
    gradients: tuple[tuple[int, ...], ...] = ()
    """with replicas: the tensors of each gradient of this rank, by number"""


def plan(job: KerasJob, function: KerasStepFunction, call: StepCall) -> PlannedStep:
    """Traces and cuts a step for the shapes of `call`. On all ranks of a pipeline, before the first such call.

    Raises UserError, the same on all ranks, for a function or a model that cannot be cut.
    """
    what = f"@smp.step {call.text}"
    pipeline = job.pipeline
    pipeline.together(what)
    traced = pipeline.on_all(lambda: _traced(job, function, call), what)
    digests = pipeline.gathered(_digest(traced), what)
    if len(set(digests)) > 1:
        raise UserError(
            f"{what}: the ranks have different graphs of this function; allowed: the same model and function on all ranks; "
            "fix: make no layer or operation depend on the rank"
        )
    if job.layout.grid.pp == 1:
        # All ranks make the first step of a job together; later signatures may be of one replica only.
        planned = (pipeline if job.equal else job.replicas).on_all(lambda: _whole(job, traced), what)
        _equalise(job)
        return planned
    if job.placement is None:
        default, stages = job.default_partition, job.layout.stages
        if default is None:
            found = pipeline.on_all(lambda: partitioning.segments(traced, stages), what)
            begins = job.world.from_first(lambda: _chosen(job, traced, found, call), what)
        else:
            found, begins = pipeline.on_all(lambda: partitioning.named(traced, stages, default), what)
        job.placement = StagePlacement(pipeline.rank, job.layout.stages)
        known = found.stages(begins)
        if job.world.rank == 0:
            print(f"smp: layers of each partition: {found.text(begins)}", flush=True)
    else:
        known = {}
    placement = job.placement
    placement.add(traced, known, job.model)
    planned = pipeline.on_all(lambda: _cut(job, traced), what)
    made = pipeline.on_all(lambda: _slots(job, traced), what)
    placement.add_slots(made)
    _equalise(job)
    placement.let_go([*job.model.all_variables(), *(slot for slot, _ in made)])
    return planned


def _traced(job: KerasJob, function: KerasStepFunction, call: StepCall) -> TracedStep:
    job.tracing = True
    try:
        traced = trace(job.model, function.function, call.specs, call.rebuilt, job.partitions)
    finally:
        job.tracing = False
    if not traced.recording.models:
        raise UserError(
            f"@smp.step {function.name}: the function does not call the model; allowed: a function that calls the smp.DistributedModel; "
            "fix: predictions = model(..) inside"
        )
    _check_optimizers(job, function, traced)
    return traced


def _check_optimizers(job: KerasJob, function: KerasStepFunction, traced: TracedStep) -> None:
    """Raises UserError for what an optimizer decides from all gradients, where each rank has some of them."""
    if traced.recording.has_loss_scale and job.world.size > 1:
        raise UserError(
            f"@smp.step {function.name}: LossScaleOptimizer on {job.world.size} ranks, each of which would change the scale and leave "
            "out steps by its own gradients; allowed: on one rank; fix: "
            "tf.keras.mixed_precision.set_global_policy('mixed_bfloat16'), which needs no scale"
        )
    stages = job.layout.grid.pp
    for optimizer, _ in traced.recording.optimizers.values():
        if stages > 1 and (norm := getattr(optimizer, "global_clipnorm", None)) is not None:
            raise UserError(
                f"@smp.step {function.name}: {type(optimizer).__name__}(global_clipnorm={norm}) with {stages} partitions, each of which "
                "would clip by the norm of its own gradients; allowed: with 1; fix: clipnorm, which clips each gradient by its own norm"
            )


def _equalise(job: KerasJob) -> None:
    """Gives this rank's variables of the model the values that they have in the first replica. On all replicas."""
    if job.replicas.size == 1:
        return
    own = [v for v in job.model.all_variables() if job.placement is None or job.placement.is_own(v)]
    own = [variable for variable in own if id(variable.handle) not in job.equal]
    if own:
        job.replicas.together(f"@smp.step: {len(own)} new variables")
    for variable in own:
        variable.assign(job.replicas.copy(variable.numpy(), f"variable {variable.name} of the first replica"))
        job.equal.add(id(variable.handle))


def _slots(job: KerasJob, traced: TracedStep) -> list[tuple[Variable, Variable]]:
    """New variables of optimizers, each with its variable of the model."""
    made = []
    for optimizer, variables in traced.recording.optimizers.values():
        if slots.can_be_whole(optimizer) and not any(each is optimizer for each in job.optimizers):
            made += slots.make(optimizer, variables)
            job.optimizers.append(optimizer)
    return made


def _digest(traced: TracedStep) -> str:
    rows = (
        f"{op.type}{[(tensor.dtype.name, str(tensor.shape)) for tensor in op.outputs]}"
        for op in traced.graph.get_operations()
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _whole(job: KerasJob, traced: TracedStep) -> PlannedStep:
    """With one partition: the function as it stands, for each microbatch."""
    leaves, tensors = _leaves(traced, lambda variable: 0, 0)

    def run(batches: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return [list(traced.concrete(*batch)) for batch in batches]

    changed = tuple(variable for variable in traced.graph.variables if not variable.trainable)
    gradients = _gradients(job, leaves)
    if job.replicas.size > 1:
        for tensor, only in tensors:
            if only is None and any(op._original_op is not None for op in ancestors([tensor.op])):
                raise cutting.from_gradients(tensor)
    return PlannedStep(
        traced, leaves, tuple(tensor for tensor, _ in tensors), run, changed, tuple(traced.graph.variables), gradients
    )


def _gradients(job: KerasJob, leaves: Result) -> tuple[tuple[int, ...], ...]:
    """The tensors of each gradient of this rank, where replicas average them."""
    if job.replicas.size == 1:
        return ()
    found = (leaf for leaf in tf.nest.flatten(leaves) if leaf.is_gradient and not leaf.is_elsewhere)
    return tuple(dict.fromkeys(leaf.tensors[:2] for leaf in found))


def _chosen(job: KerasJob, traced: TracedStep, found: partitioning.Segments, call: StepCall) -> tuple[int, ...]:
    """The group with which each stage begins, of an earlier start of the job or measured. On rank 0, which has all variables."""
    variables, shape = job.model.all_variables(), job.layout.shape
    this = same_job(variables, call.specs, shape, job.optimize)
    begins = job.saved_partition.find(this, found)
    if begins is None:
        partition, profiles = _measured(job, traced, found, call)
        job.saved_partition.write(this, profiles, partition)
        begins = partition.begins
    return begins


def _measured(
    job: KerasJob, traced: TracedStep, found: partitioning.Segments, call: StepCall
) -> tuple[Partition, list[SegmentProfile]]:
    count = len(found.groups)
    finest = StagePlacement(0, count)
    finest.add(traced, found.stages(range(count)), job.model)
    owners = Owners(traced, finest.variables)
    tensors = [tensor for tensor, _ in _leaves(traced, lambda variable: 0, None)[1]]
    cut = cutting.cut(
        traced, [(tensor, None) for tensor in tensors], finest.layers, owners, count, range(count), trial=True
    )
    state = [(variable, tf.identity(variable)) for variable in job.model.all_variables()]
    inputs = (
        call.split()[0] if tf.executing_eagerly() and not _symbolic(call) else [_example(spec) for spec in call.specs]
    )
    names = [tensor.name for tensor in traced.inputs]
    measured = partitioning.chosen(found, cut, inputs, names, job.layout.shape, job.optimize)
    for variable, value in state:
        variable.assign(value)
    return measured


def _symbolic(call: StepCall) -> bool:
    return any(not hasattr(tensor, "numpy") for tensor in call.tensors)


def _example(spec: tf.TensorSpec) -> Tensor:
    """A tensor to measure with, where the script's own exists only inside its tf.function."""
    return tf.zeros(spec.shape, spec.dtype)


def _cut(job: KerasJob, traced: TracedStep) -> PlannedStep:
    placement, pipeline, layout = job.placement, job.pipeline, job.layout
    assert placement is not None

    def stage_of(variable: Variable) -> int | None:
        return placement.variables.get(id(variable.handle))

    leaves, tensors = _leaves(traced, stage_of, placement.stage)
    everything = _leaves(traced, stage_of, None)[1]
    owners = Owners(traced, placement.variables)
    cut = cutting.cut(traced, everything, placement.layers, owners, layout.stages, [pipeline.rank])
    run = StepRun(
        cut,
        pipeline,
        layout.schedule,
        layout.microbatches,
        [tensor.name for tensor in traced.inputs],
        [tensor.name for tensor, _ in tensors],
        job.drawn,
    )
    own = tuple(variable for variable in traced.graph.variables if placement.is_own(variable))
    return PlannedStep(
        traced,
        leaves,
        tuple(tensor for tensor, _ in tensors),
        run,
        tuple(variable for variable in own if not variable.trainable),
        own,
        _gradients(job, leaves),
    )


def _leaves(
    traced: TracedStep, stage_of: Callable[[Variable], int | None], rank: int | None
) -> tuple[Result, list[tuple[Tensor, int | None]]]:
    """What the function returns, as leaves, and the tensors that a rank gets, each with the only rank that needs it.

    `rank` None: the tensors of all ranks.
    """
    tensors: list[tuple[Tensor, int | None]] = []

    def leaf(value: Given) -> Leaf:
        if not isinstance(value, (tf.Tensor, tf.IndexedSlices)):
            if isinstance(value, tf.__internal__.CompositeTensor):
                raise UserError(
                    f"smp.step: the function returns a {type(value).__name__}; allowed: tensors, gradients, and values of Python; "
                    "fix: return its dense form"
                )
            return Leaf((), False, value)
        variable = traced.recording.gradients.get(id(value))
        only = None if variable is None else stage_of(variable)
        if rank is not None and only not in (None, rank):
            return Leaf((), False, is_elsewhere=True)
        is_slices = isinstance(value, tf.IndexedSlices)
        parts = [value.values, value.indices] if is_slices else [value]
        if is_slices and value.dense_shape is not None:
            parts.append(value.dense_shape)
        numbers = tuple(range(len(tensors), len(tensors) + len(parts)))
        tensors.extend((part, only) for part in parts)
        return Leaf(numbers, is_slices, is_gradient=variable is not None)

    return tf.nest.map_structure(leaf, traced.result), tensors
