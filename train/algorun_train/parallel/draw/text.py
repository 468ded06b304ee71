"""A pipeline's schedule, partition and memory as text for the terminal and the log."""

from collections.abc import Sequence

from algorun_train.parallel import schedules
from algorun_train.parallel.partition.partitioner import Decision, Segment
from algorun_train.parallel.partition.repeats import Repeats
from algorun_train.parallel.schedules import Span

MIB = 2**20
WIDTH = 120  # columns of a terminal and of most log viewers


def schedule_text(name: str, ranks: int, chunks: int, microbatches: int, width: int = WIDTH) -> str:
    """Ranks x time, for stages that are equal and take twice as long backward as forward; at most `width` columns.

    `F3` is the forward pass of microbatch 3 and `B3` its backward pass (`I` and `W` where that is split); the stages
    of a rank are told apart by `a`, `b`, .. in the model's order. Of a long schedule the middle is left out.
    """
    orders = schedules.orders(name, ranks, chunks, microbatches)
    timeline = schedules.simulate(orders, [1.0] * ranks * chunks, [2.0] * ranks * chunks)
    letters = "abcdefghijklmnopqrstuvwxyz"
    cell = 1 + len(str(microbatches - 1)) + (chunks > 1) + 1
    heads = [f"rank {rank:<{len(str(ranks - 1))}} |" for rank in range(ranks)]
    room = width - len(heads[0]) - 1

    def lane(rank: int, spans: Sequence[Span]) -> str:
        held = schedules.stages_of(name, ranks, rank, chunks)
        text = ""
        for (kind, stage, microbatch), begin, end in spans:
            if begin == end:  # the first stage's input gradient, which is not computed
                continue
            label = f"{kind}{microbatch}" + (letters[held.index(stage) % 26] if chunks > 1 else "")
            text += " " * (round(begin) * cell - len(text))
            wide = (round(end) - round(begin)) * cell - 1
            text += label.ljust(wide, "-" if wide >= cell else " ") + " "
        return text.ljust(round(timeline.step_s) * cell)

    lanes = [lane(rank, spans) for rank, spans in enumerate(timeline.ranks)]
    if len(lanes[0]) > room:
        part = (room - 4) // (2 * cell) * cell
        lanes = [f"{text[:part]} .. {text[-part:]}" for text in lanes]
    rows = [f"{head}{text}|" for head, text in zip(heads, lanes, strict=True)]
    title = (
        f"schedule {name}: {_count(ranks, 'rank')}, {_count(ranks * chunks, 'stage')}, "
        f"{_count(microbatches, 'microbatch')}, bubble {timeline.bubble:.1%} (equal stages)"
    )
    return "\n".join([title, *rows])


def decision_text(decision: Decision, segments: Sequence[Segment]) -> str:
    """One row per stage, times in ms per microbatch, and the predicted step below."""
    rows = [("stage", "rank", "first unit", "weights MiB", "forward ms", "backward ms", "in flight", "MiB")]
    columns = zip(
        decision.ranks,
        (segments[begin].name for begin in decision.begins),
        decision.parameter_bytes,
        decision.forward_s,
        decision.backward_s,
        decision.in_flight,
        decision.stage_bytes,
        strict=True,
    )
    for stage, (rank, name, weights, forward, backward, many, size) in enumerate(columns):
        times = f"{forward * 1e3:.2f}", f"{backward * 1e3:.2f}"
        rows.append((f"{stage}", f"{rank}", name, f"{weights / MIB:.1f}", *times, f"{many}", f"{size / MIB:.1f}"))
    largest = max(range(len(decision.rank_bytes)), key=decision.rank_bytes.__getitem__)
    summary = (
        f"planned step {decision.step_s * 1e3:.1f} ms, bubble {decision.bubble:.1%}, largest rank {largest} with "
        f"{decision.rank_bytes[largest] / MIB:.1f} MiB"
    )
    shared = [
        f"{name} is in stages {', '.join(map(str, stages))}, {size / MIB:.1f} MiB in each: their gradients are summed"
        for name, stages, size in Repeats(segments).of_stages(decision.begins)
    ]
    return "\n".join([*_table(rows, left=(2,)), *shared, summary])


def memory_text(planned: Sequence[int], measured: Sequence[int | None], what: str = "rank") -> str:
    """Bytes planned against bytes measured, one row each; None was not measured."""
    rows = [(what, "planned MiB", "measured MiB", "measured / planned")]
    for place, (plan, found) in enumerate(zip(planned, measured, strict=True)):
        share = "-" if found is None or not plan else f"{found / plan:.2f}"
        rows.append((f"{place}", f"{plan / MIB:.1f}", "-" if found is None else f"{found / MIB:.1f}", share))
    return "\n".join(_table(rows))


def _table(rows: Sequence[tuple[str, ...]], left: tuple[int, ...] = ()) -> list[str]:
    """Columns to the right, those of `left` to the left, two blanks between."""
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
