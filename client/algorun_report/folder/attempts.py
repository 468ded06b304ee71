"""The attempts of a job, from the launcher's lines. Each start of the hosts counts its attempts from 1; a page counts on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from algorun_report.run_report import ReportedAttempt, RunReport

from .log_files import shown

FOLLOWS = re.compile(r"algorun: attempt (\d{1,4})/\d+ follows")  # a row each: a program may print any number
HEADLINE = re.compile(r"algorun: ([a-z]+: .+)")  # of a failure: the line before


@dataclass(slots=True)
class HostsStart:
    """What the logs of one start of the hosts tell. Times are seconds since 1970, None if unknown."""

    begin: float | None = None  # of its first line
    begins: dict[int, float | None] = field(default_factory=dict)  # of each attempt but the first
    causes: dict[int, str] = field(default_factory=dict)  # why each attempt but the last ended

    def note(self, before: str, line: str, time: float | None) -> None:
        """A line of the launcher, and the line before it."""
        headline, follows = HEADLINE.match(before), FOLLOWS.match(line)
        if follows:
            self.begins.setdefault(int(follows[1]), time)
        if follows and headline:
            self.causes.setdefault(int(follows[1]) - 1, shown(headline[1]))

    @property
    def last(self) -> int:
        """The number of its last attempt."""
        return max([1, *self.begins, *(number + 1 for number in self.causes)])


def restarted(report: RunReport) -> str:
    """Why the hosts of a job were started again."""
    if report.retries and not report.interruptions:
        return "SageMaker started the job again after an error of its own"
    if report.interruptions and not report.retries:
        return "AWS took the spot instances back"
    return "the hosts were started again"


def numbered(starts: Sequence[HostsStart], begin: float | None, why: str, end: str) -> list[ReportedAttempt]:
    """The attempts of all starts. `begin`: of the job; `why`: hosts were started again; `end`: why the job failed, or ""."""
    found: list[ReportedAttempt] = []
    for at, start in enumerate(starts):
        begins: Mapping[int, float | None] = {1: start.begin if at else begin, **start.begins}
        closing = why if start is not starts[-1] else end
        found += [
            ReportedAttempt(
                len(found) + number,
                start.causes.get(number) or (closing if number == start.last else ""),
                begins.get(number),
            )
            for number in range(1, start.last + 1)
        ]
    return found
