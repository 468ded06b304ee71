"""One measured step of a pipeline as files: a picture, with the planned step above it, and a trace for a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from algorun_train.common.files import write_text
from algorun_train.parallel import schedules
from algorun_train.parallel.schedules import PipelineShape, Span, Timeline

from .chrome_trace import chrome_trace
from .svg import svg

TIMED_STEP = 4  # from 1; earlier steps allocate buffers
SVG, TRACE = "schedule.svg", "schedule-trace.json"
StageSeconds = tuple[Sequence[float], Sequence[float]]  # of each stage's forward and backward pass of one microbatch


def write_schedule(
    folder: Path, shape: PipelineShape, ranks: Sequence[Sequence[Span]], number: int, planned: StageSeconds | None
) -> str:
    """Writes SVG and TRACE into `folder` and returns a line for the log. On one rank.

    `ranks` are the spans of each rank of the pipeline in step `number`; `planned` is None if nothing was planned. OSError if a
    file cannot be written.
    """
    measured = Timeline(tuple(tuple(spans) for spans in ranks))
    pictures = [(f"measured, step {number}", measured)]
    if planned is not None:
        orders = schedules.orders(shape.schedule, shape.ranks, shape.chunks, shape.microbatches)
        pictures.insert(0, ("planned", schedules.simulate(orders, *planned)))
    title = f"{shape.schedule}, {shape.ranks} ranks, {shape.microbatches} microbatches"
    write_text(folder / SVG, svg(title, pictures))
    write_text(folder / TRACE, chrome_trace(measured))
    return (
        f"schedule: measured step {measured.step_s * 1e3:.1f} ms, bubble {measured.bubble:.1%}; "
        f"{folder / SVG} and {folder / TRACE}"
    )
