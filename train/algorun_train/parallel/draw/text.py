"""A pipeline's schedule, partition and memory as text for the terminal and the log."""

from __future__ import annotations

from collections.abc import Sequence

from algorun_train.parallel import schedules
from algorun_train.parallel.partition.costs import Partition, SegmentProfile
from algorun_train.parallel.partition.shared_bytes import SharedBytes
from algorun_train.parallel.schedules import PipelineShape, Span

MIB = 2**20
WIDTH = 120  # columns of a terminal and of most log viewers


def schedule_text(shape: PipelineShape, width: int = WIDTH) -> str:
    """One line per rank, time to the right, at most `width` columns; the middle of a long schedule is left out.

    All stages take the same time, twice as long backward as forward. `F3` is the forward pass of microbatch 3 and `B3` its
    backward pass, or `I3` and `W3` if that is split. The stages of a rank are `a`, `b`, .. in the model's order.
    """
    name, ranks, chunks, microbatches = shape.schedule, shape.ranks, shape.chunks, shape.microbatches
    orders = schedules.orders(name, ranks, chunks, microbatches)
    timeline = schedules.simulate(orders, [1.0] * ranks * chunks, [2.0] * ranks * chunks)
    letters = "abcdefghijklmnopqrstuvwxyz"
    cell = 1 + len(str(microbatches - 1)) + (chunks > 1) + 1
    heads = [f"rank {rank:<{len(str(ranks - 1))}} |" for rank in range(ranks)]
    room = width - len(heads[0]) - 1

    def lane(rank: int, spans: Sequence[Span]) -> str:
        stages = schedules.stages_of(name, ranks, rank, chunks)
        text = ""
        for (kind, stage, microbatch), begin, end in spans:
            if begin == end:  # the first stage's input gradient, which is not computed
                continue
            label = f"{kind}{microbatch}" + (letters[stages.index(stage) % 26] if chunks > 1 else "")
            text += " " * (round(begin) * cell - len(text))
            wide = (round(end) - round(begin)) * cell - 1
            text += label.ljust(wide, "-" if wide >= cell else " ") + " "
        return text.ljust(round(timeline.step_s) * cell)

    lanes = [lane(rank, spans) for rank, spans in enumerate(timeline.ranks)]
    if len(lanes[0]) > room:
        half = (room - 4) // (2 * cell) * cell
        lanes = [f"{text[:half]} .. {text[-half:]}" for text in lanes]
    rows = [f"{head}{text}|" for head, text in zip(heads, lanes, strict=True)]
    title = (
        f"schedule {name}: {_count(ranks, 'rank')}, {_count(ranks * chunks, 'stage')}, "
        f"{_count(microbatches, 'microbatch')}, bubble {timeline.bubble:.1%} (equal stages)"
    )
    return "\n".join([title, *rows])


def partition_text(partition: Partition, segments: Sequence[SegmentProfile]) -> str:
    """A table with one row per stage, times in ms per microbatch; below it shared weights and the predicted step."""
    rows = [("stage", "rank", "first unit", "weights MiB", "forward ms", "backward ms", "in flight", "MiB")]
    columns = zip(
        partition.ranks,
        (segments[begin].name for begin in partition.begins),
        partition.parameter_bytes,
        partition.forward_s,
        partition.backward_s,
        partition.in_flight,
        partition.stage_bytes,
        strict=True,
    )
    for stage, (rank, name, weights, forward, backward, many, size) in enumerate(columns):
        times = f"{forward * 1e3:.2f}", f"{backward * 1e3:.2f}"
        rows.append((f"{stage}", f"{rank}", name, f"{weights / MIB:.1f}", *times, f"{many}", f"{size / MIB:.1f}"))
    largest = max(range(len(partition.rank_bytes)), key=partition.rank_bytes.__getitem__)
    summary = (
        f"planned step {partition.step_s * 1e3:.1f} ms, bubble {partition.bubble:.1%}, largest rank {largest} with "
        f"{partition.rank_bytes[largest] / MIB:.1f} MiB"
    )
    shared = [
        f"{name} is in stages {', '.join(map(str, stages))}, {size / MIB:.1f} MiB in each: their gradients are summed"
        for name, stages, size in SharedBytes(segments).of_stages(partition.begins)
    ]
    return "\n".join([*_table(rows, left=(2,)), *shared, summary])


def memory_text(planned: Sequence[int], measured: Sequence[int | None], what: str = "rank") -> str:
    """A table of planned and measured bytes, one row per rank; None: not measured."""
    rows = [(what, "planned MiB", "measured MiB", "measured / planned")]
    for place, (plan, found) in enumerate(zip(planned, measured, strict=True)):
        share = "-" if found is None or not plan else f"{found / plan:.2f}"
        rows.append((f"{place}", f"{plan / MIB:.1f}", "-" if found is None else f"{found / MIB:.1f}", share))
    return "\n".join(_table(rows))


def _table(rows: Sequence[tuple[str, ...]], left: tuple[int, ...] = ()) -> list[str]:
    """Rows as text: columns aligned right, those of `left` aligned left, two blanks between columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            text.ljust(width) if place in left else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _count(number: int, word: str) -> str:
    plural = word + ("es" if word.endswith("ch") else "s")
    return f"{number} {word if number == 1 else plural}"
