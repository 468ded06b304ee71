"""Decides how a pipeline job is laid out, from its options and the number of ranks. Pure, so all ranks decide the same."""

from algorun_train.common.errors import UserError
from algorun_train.parallel import schedules
from algorun_train.parallel.layout.grid import grid
from algorun_train.parallel.layout.layout import Layout

from .job_options import PipelineJobOptions, divisors
from .mp_parameters import MpParameters
from .shard_layout import shards_among, tensor_groups

PER_RANK = 4  # microbatches per rank of a pipeline, at most, by default: the bubble is then below a fifth


def lay_out(config: PipelineJobOptions, mp: MpParameters, world_size: int, torch: str = "") -> Layout:
    """The layout of a job under this version of torch. Raises UserError, which names the rule that the options break."""
    places, what = tensor_groups(config.tp, world_size), "ranks" if config.tp == 1 else "tensor groups"
    pp = config.pp or next((n for n in range(2, places + 1) if places % n == 0), 1)
    shape = grid(world_size, pp, config.placement, mp.named("pp", pp), config.tp)
    if shape.dp > 1 and not mp.ddp:
        raise UserError(
            f"mp_parameters: partitions = {pp} on {places} {what}; allowed: {places} without ddp; "
            f'fix: "ddp": true, or as many partitions as {what}'
        )
    name = schedules.ALIASES.get(config.schedule, config.schedule)
    least, most = schedules.find(name).chunks
    chunks = config.chunks or least
    if pp == 1:
        if chunks > 1 and config.chunks:
            fix = "more partitions" if mp.options else "a larger --pp"
            raise UserError(f"option --chunks: {chunks} with one rank per pipeline; allowed: 1; fix: {fix}")
        name, chunks = "1f1b", 1  # one microbatch at a time
    elif most == 1 < chunks:
        raise UserError(
            f"option --chunks: {chunks} with --schedule {config.schedule}; allowed: 1; fix: --schedule interleaved"
        )
    if config.recompute:
        schedules.check_recompute(name)
    stages = pp * chunks
    schedules.rules(
        name, pp, stages, stages, torch
    )  # checks the number of stages: as many microbatches as stages are always allowed
    counts = [n for n in range(1, config.batch_size + 1) if config.batch_size % n == 0]
    microbatches = config.microbatches
    if microbatches is None:
        allowed = schedules.allowed_microbatches(name, pp, stages, counts, torch)
        microbatches = max((n for n in allowed if n <= PER_RANK * pp), default=max(allowed, default=0))
        if not microbatches:
            raise UserError(
                f"option --batch-size: {config.batch_size} has no number of microbatches that schedule {name} allows "
                f"with {stages} stages; its divisors: {divisors(config.batch_size)}; fix: a multiple of {stages}"
            )
    schedules.rules(name, pp, stages, microbatches, torch)
    _active(mp, name, pp, chunks, microbatches)
    shards = shards_among(config.shard, shape.dp, "pipelines")
    if shards > 1 and schedules.find(name).experimental:
        raise UserError(
            f"option --shard: {config.shard} with --schedule {config.schedule}, which splits the backward pass; "
            "allowed: 1f1b, gpipe, interleaved; fix: use one of them, or --shard 1"
        )
    return Layout(shape, name, chunks, microbatches, config.batch_size // microbatches, shards)


def _active(mp: MpParameters, name: str, pp: int, chunks: int, microbatches: int) -> None:
    """Raises UserError if the schedule has more microbatches in flight than AWS's `active_microbatches` allows."""
    if mp.active_microbatches is None or pp == 1:
        return
    most = max(schedules.in_flight_by_stage(schedules.orders(name, pp, chunks, microbatches)))
    if most > mp.active_microbatches:
        fix = "use pipeline interleaved" if name == "gpipe" else f"give {most} or more, or fewer partitions"
        raise UserError(
            f"mp_parameters: active_microbatches = {mp.active_microbatches}; schedule {name} holds {most}; "
            f"allowed: {most} or more; fix: {fix}"
        )
