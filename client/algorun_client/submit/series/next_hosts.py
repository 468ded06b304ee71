"""What is said when a job gets other hosts than the ones before, for which there was no room."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from algorun_client.common import json_lines
from algorun_client.follow.line_text import shown
from algorun_client.submit.assemble import rules
from algorun_client.submit.read.spec import TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NextHosts:
    """Which hosts had no room and why, and which are next. `rate`: what these cost for one hour; None if unknown."""

    task: str
    tried: str
    then: str
    why: str
    rate: float | None

    @classmethod
    def after(cls, spec: TaskSpec, number: int, why: str, elsewhere: TaskSpec | None = None) -> NextHosts:
        """The choice after this one. `elsewhere`: the task in the next region, whose first choice comes after the last one here."""
        choices = spec.resources.choices
        if number + 1 < len(choices) or elsewhere is None:
            tried, then, asked = choices[number].text, choices[number + 1].text, spec.of_choice(number + 1)
        else:
            asked = elsewhere.of_choice(0)
            tried = f"{choices[number].text} in {spec.region}"
            then = f"{elsewhere.resources.choices[0].text} in {elsewhere.region}"
        return cls(task=spec.task, tried=tried, then=then, why=why, rate=rules.rate(asked.resources))

    @property
    def text(self) -> str:
        """One line."""
        price = f" ({self.rate:.6g} an hour)" if self.rate is not None else ""
        return f"no room for {self.tried} ({self.why}); next: {self.then}{price}"

    def say(self, *, as_json: bool) -> None:
        """Says it: on stderr, or as JSON."""
        if as_json:
            json_lines.write(
                "next_hosts",
                task=self.task,
                tried=self.tried,
                next=self.then,
                rate=self.rate,
                text=self.why,
            )
        else:
            print(f"algorun: {shown(self.text)}", file=sys.stderr, flush=True)
