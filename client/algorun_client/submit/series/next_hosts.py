"""What is said when a job gets other hosts than the ones before, for which there was no room."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from algorun_client.common import json_lines
from algorun_client.follow.line_text import shown
from algorun_client.submit.build import rules
from algorun_client.submit.read.spec import HostChoice, TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NextHosts:
    """Which hosts had no room and why, and which are next. `rate`: what these cost for one hour; None if unknown."""

    task: str
    tried: HostChoice
    then: HostChoice
    why: str
    rate: float | None

    @classmethod
    def after(cls, spec: TaskSpec, number: int, why: str) -> NextHosts:
        """The choice after this one."""
        tried, then = spec.resources.choices[number : number + 2]
        return cls(
            task=spec.task, tried=tried, then=then, why=why, rate=rules.rate(spec.of_choice(number + 1).resources)
        )

    @property
    def text(self) -> str:
        """One line."""
        price = f" ({self.rate:.6g} an hour)" if self.rate is not None else ""
        return f"no room for {self.tried.text} ({self.why}); next: {self.then.text}{price}"

    def say(self, *, as_json: bool) -> None:
        """Says it: on stderr, or as JSON."""
        if as_json:
            json_lines.write(
                "next_hosts",
                task=self.task,
                tried=self.tried.text,
                next=self.then.text,
                rate=self.rate,
                text=self.why,
            )
        else:
            print(f"algorun: {shown(self.text)}", file=sys.stderr, flush=True)
