"""The view for people: lines of hosts scroll; below them stand the job's phases and its last metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from algorun_client.target.job_state import JobState

from .line_text import marked, shown
from .log_reader import LogLine
from .outcome import Ending, Outcome
from .view import duration

NEWEST = 200  # lines of a round that are searched for metrics: 40 expressions on every line would cost a core
MOST_METRICS = 6
WIDEST_VALUE = 24  # characters of a metric
JOIN = Text("  ", no_wrap=True)
OLDER = Text("..", style="dim")  # in place of phases that do not fit
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class MetricValues:
    """The newest value of each metric that the job defines."""

    def __init__(self) -> None:
        self._patterns: dict[str, re.Pattern[str]] = {}
        self.values: dict[str, str] = {}

    def define(self, metrics: Sequence[tuple[str, str]]) -> None:
        """Takes the job's metrics, the first time that it knows them."""
        if self._patterns:
            return
        for name, expression in metrics:
            try:
                self._patterns[name] = re.compile(expression)
            except re.error:  # SageMaker's expressions may know more than Python's
                continue

    def read(self, lines: Sequence[LogLine]) -> None:
        """Takes the values of the newest lines."""
        for line in lines[-NEWEST:]:
            for name, pattern in self._patterns.items():
                found = pattern.search(line.text)
                if found and found.groups():
                    self.values[name] = shown(found[1] or "")[:WIDEST_VALUE]


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines as segments: a Text of 16,000 lines costs ten times as much."""

    lines: Sequence[LogLine]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self.lines:
            mark, text = marked(line.host, line.text)
            yield Segment(mark, _colour(line.host))
            yield Segment(f" {text}\n")


class TerminalView:
    """Lines scroll above; the rows below them show where the job is and are redrawn."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._state: JobState | None = None
        self._metrics = MetricValues()
        self._live = Live(
            get_renderable=self._below,
            console=self._console,
            refresh_per_second=2,
            transient=True,
            redirect_stderr=False,
        )
        self._live.start()

    def state(self, state: JobState) -> None:
        self._state = state
        self._metrics.define(state.metrics)

    def lines(self, lines: Sequence[LogLine]) -> None:
        if not lines:
            return
        self._metrics.read(lines)
        self._console.print(_Lines(lines), end="", soft_wrap=True)

    def note(self, text: str) -> None:
        self._console.print(Text(f"algorun: {shown(text)}", style="dim"))

    def end(self, job: str, outcome: Outcome, again: str) -> None:
        self.close()
        if self._state is not None:
            self._console.print(JOIN.join([_name(self._state), *_phases(self._state)]))
        for line in outcome.text.splitlines():
            self._console.print(Text(shown(line)))
        if again:
            self._console.print(Text.assemble("come back with: ", (again, "bold")))
        good = outcome.kind in (Ending.COMPLETED, Ending.DETACHED)
        self._console.print(Text(f"algorun: {outcome.line(job)}", style="bold green" if good else "bold red"))

    def close(self) -> None:
        self._live.stop()

    def _below(self) -> RenderableType:
        if self._state is None:
            return Text("asking for the job's state", style="dim")
        shown_metrics = list(self._metrics.values.items())[:MOST_METRICS]
        rows: list[RenderableType] = [*where_it_is(self._state, self._console.width)]
        if shown_metrics:
            rows.append(
                Text("  ".join(f"{shown(name)} {value}" for name, value in shown_metrics), style="cyan", no_wrap=True)
            )
        rows.append(Text("Ctrl-C leaves the job running", style="dim"))
        return Group(*rows)


def where_it_is(state: JobState, width: int) -> list[Text]:
    """The job and its phases: one row if they fit into `width` columns, else two, the second with the newest phases."""
    name, phases = _name(state), _phases(state)
    row = JOIN.join([name, *phases])
    if row.cell_len <= width:
        return [row]
    kept: list[Text] = []
    for each in reversed(phases):
        if kept and JOIN.join([OLDER, each, *kept]).cell_len > width:
            return [name, JOIN.join([OLDER, *kept])]
        kept.insert(0, each)
    return [name, JOIN.join(kept)]


def _name(state: JobState) -> Text:
    return Text(state.job, style="bold", no_wrap=True)


def _phases(state: JobState) -> list[Text]:
    """Each phase with its duration; the one that lasts is bold."""
    now = datetime.now(UTC)
    found = [
        Text(f"{each.name} {duration(each.seconds(now))}", style="bold" if each.end is None else "")
        for each in state.phases
    ]
    return found or [Text(state.status)]


@cache
def _colour(host: str) -> Style:
    digits = re.sub(r"\D", "", host)
    return Style(color=COLOURS[int(digits or 0) % len(COLOURS)])
