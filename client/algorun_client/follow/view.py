"""What a follower shows, and the two views for programs and files: JSON, and plain lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol, TextIO

from algorun.common.durations import duration
from algorun_client.aws.job_cost import paid_s
from algorun_client.aws.job_state import JobState
from algorun_client.common import json_lines

from .line_text import marked, shown
from .log_reader import LogLine
from .outcome import Outcome, judge


class View(Protocol):
    """Shows one job. `close` is called once, also after an exception."""

    def state(self, state: JobState) -> None:
        """The job's state, whether it has changed or not."""
        ...

    def lines(self, lines: Sequence[LogLine]) -> None:
        """New lines of its hosts."""
        ...

    def note(self, text: str) -> None:
        """Something about following itself."""
        ...

    def end(self, job: str, outcome: Outcome, again: str) -> None:
        """The last line. `again`: the command that goes on with a job that runs on."""
        ...

    def close(self) -> None:
        """Gives the terminal back."""
        ...


class PlainView:
    """Lines of hosts on stdout as `[algo-1] text` or `[RANK algo-1] text`; what algorun says on stderr."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._told = ("", "")

    def state(self, state: JobState) -> None:
        phase = state.phases[-1].name if state.phases and not state.ended else state.detail
        told = (state.status, phase)
        if told == self._told:
            return
        self._told = told
        now = datetime.now(UTC)
        past = [f"{each.name} {duration(each.seconds(now))}" for each in state.phases if each.end]
        after = f" (after {', '.join(past)})" if past else ""
        self.note(f"{state.job}: {phase or state.status}{after}")

    def lines(self, lines: Sequence[LogLine]) -> None:
        if not lines:
            return
        self._out.write("".join(f"{' '.join(marked(line.host, line.text))}\n" for line in lines))
        self._out.flush()

    def note(self, text: str) -> None:
        self._err.write(f"algorun: {shown(text)}\n")
        self._err.flush()

    def end(self, job: str, outcome: Outcome, again: str) -> None:
        for line in outcome.text.splitlines():
            self._err.write(f"  {shown(line)}\n")
        if again:
            self._err.write(f"algorun: come back with: {again}\n")
        self.note(outcome.line(job))

    def close(self) -> None:
        pass


class JsonView:
    """One JSON object a line, on stdout: `event` is state, line, note or end."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._last: dict[str, object] = {}

    def state(self, state: JobState) -> None:
        value = {"event": "state", **state_of_job(state)}
        if value != self._last:
            self._last = value
            self._write([value])

    def lines(self, lines: Sequence[LogLine]) -> None:
        self._write(
            [{"event": "line", "host": each.host, "time_ms": each.time_ms, "text": each.text} for each in lines]
        )

    def note(self, text: str) -> None:
        self._write([{"event": "note", "text": text}])

    def end(self, job: str, outcome: Outcome, again: str) -> None:
        self._write([_end(job, outcome, again).to_json()])

    def close(self) -> None:
        pass

    def _write(self, values: Sequence[dict[str, object]]) -> None:
        if values:
            self._out.write("".join(json_lines.text(each) + "\n" for each in values))
            self._out.flush()


def state_json(state: JobState) -> dict[str, object]:
    """A job's state for programs. Times are seconds since 1970."""
    created, ended = state.times.created, state.times.ended
    return {
        "job": state.job,
        "kind": state.kind.value,
        "status": state.status,
        "detail": state.detail,
        "hosts": state.hosts.count,
        "host_kind": state.hosts.kind,
        "instance": state.hosts.instance,
        "created": created.timestamp() if created else None,
        "ended": ended.timestamp() if ended else None,
        "spot": state.is_spot,
        "interruptions": state.interruptions,
        "retries": state.retries,
        "billable_s": paid_s(state),
        "training_s": state.times.training_s,
        "saving": state.saving,
        "phases": [
            {"name": each.name, "begin": each.begin.timestamp(), "end": each.end.timestamp() if each.end else None}
            for each in state.phases
        ],
        "failure": state.exit_message or state.failure,
    }


def _end(job: str, outcome: Outcome, again: str) -> json_lines.LastObject:
    return json_lines.LastObject(
        job=job,
        code=outcome.code,
        code_known=outcome.code_known,
        kind=outcome.kind.value,
        source=outcome.source.value,
        text=outcome.text,
        again=again,
    )


def state_of_job(state: JobState) -> dict[str, object]:
    """As `state_json`, and how the job ended: None while it runs."""
    return {**state_json(state), "outcome": outcome_json(judge(state)) if state.ended else None}


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """An outcome for programs."""
    return {
        "code": outcome.code,
        "code_known": outcome.code_known,
        "kind": outcome.kind.value,
        "source": outcome.source.value,
        "text": outcome.text,
    }
