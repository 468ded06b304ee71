"""The view for people: lines of hosts scroll; below them stand the job's phases and its last metrics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from algorun.common import terminal
from algorun.common.bounded_search import BoundedSearch, compiled
from algorun.common.durations import duration
from algorun_client.aws.job_state import JobState

from .failure_lines import FailureEnd, FailureLines
from .line_text import marked, shown
from .log_reader import LogLine
from .outcome import Ending, Outcome

NEWEST = 200  # lines of a round that are searched for metrics: 40 expressions on every line would cost a core
BUDGET_S = 0.5  # for one expression: lines wait for it, once
MOST_METRICS = 6
WIDEST_VALUE = 24  # characters of a metric
JOIN = Text("  ", no_wrap=True)
OLDER = Text("..", style="dim")  # in place of phases that do not fit


class MetricValues:
    """The newest value of each metric that the job defines. `note` gets a sentence about one that takes too long to search."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._names: list[str] = []
        self._search: BoundedSearch | None = None
        self.values: dict[str, str] = {}

    def define(self, metrics: Sequence[tuple[str, str]]) -> None:
        """Takes the job's metrics, the first time that it knows them."""
        if self._search is not None or not metrics:
            return
        regexes = []
        for name, expression in metrics:
            with contextlib.suppress(ValueError):  # SageMaker's expressions may know more than Python's
                if compiled(expression).groups:
                    self._names.append(name)
                    regexes.append(expression)
        self._search = BoundedSearch(regexes, self._slow, BUDGET_S)

    def _slow(self, number: int, text: str) -> None:
        self.values.pop(self._names[number], None)
        self._note(f"metric {self._names[number]} is not shown any more: {text}")

    def read(self, lines: Sequence[LogLine]) -> None:
        """Takes the values of the newest lines."""
        if self._search is None:
            return
        found = self._search.search([line.text for line in lines[-NEWEST:]])
        newest = {name: matches[-1] for name, matches in zip(self._names, found, strict=True) if matches}
        for name, (_, text) in sorted(newest.items(), key=lambda each: each[1][0]):
            if self._names.index(name) not in self._search.slow:
                self.values[name] = shown(text)[:WIDEST_VALUE]

    def close(self) -> None:
        """Ends the process that searches."""
        if self._search is not None:
            self._search.close()


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

    def __init__(self, console: Console | None = None, failure: FailureLines | None = None) -> None:
        """`failure`: chooses what is shown of a failure. Without it all lines are shown as they come."""
        self._failure = failure
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._state: JobState | None = None
        self._metrics = MetricValues(self.note)
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
        if lines:
            self._metrics.read(lines)
        self._print(self._failure.take(lines, time.monotonic()) if self._failure is not None else lines)

    def _print(self, lines: Sequence[LogLine]) -> None:
        if lines:
            self._console.print(_Lines(lines), end="", soft_wrap=True)

    def note(self, text: str) -> None:
        self._console.print(Text(f"algorun: {shown(text)}", style="dim"))

    def end(self, job: str, outcome: Outcome, again: str) -> None:
        text = outcome.text if outcome.kind is Ending.FAILED else ""
        left = self._failure.end(text) if self._failure is not None else FailureEnd()
        self.close()
        if not left.is_told:
            for line in outcome.text.splitlines():
                self._console.print(Text(shown(line)))
        if left.count and self._failure is not None:
            self._console.print(Text(f"algorun: {left.count}"))
            self._console.print(Text(f"algorun: their lines: {self._failure.command}"), soft_wrap=True)
        self._print(left.lines)
        if self._state is not None:
            self._console.print(JOIN.join([_name(self._state), *_phases(self._state)]))
        if again:
            self._console.print(Text.assemble("come back with: ", (again, "bold")))
        good = outcome.kind in (Ending.COMPLETED, Ending.DETACHED)
        self._console.print(Text(f"algorun: {outcome.line(job)}", style="bold green" if good else "bold red"))

    def close(self) -> None:
        self._metrics.close()
        self._live.stop()
        if self._failure is not None:  # nobody has said how the job ended
            self._print(self._failure.end("").lines)

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
    return Style(color=terminal.host_colour(host))
