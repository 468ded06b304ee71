"""`{task:TASK/METRIC}` in a program's words stands for the last value of a metric of another task. Pure.

Shells and TOML leave these words alone. `{{task:` stands for a literal `{task:`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from algorun.common.errors import UserError

from .spec import TaskSpec

FORM = "{task:TASK/METRIC}"
BEGIN = "{task:"
MARK = re.compile(r"(?P<literal>\{\{task:)|\{task:(?P<task>[^{}/\s]+)/(?P<metric>[^{}\n]+)\}|(?P<wrong>\{task:)")


@dataclass(frozen=True, slots=True)
class Reference:
    """A value of another task."""

    task: str
    metric: str


def found(spec: TaskSpec) -> dict[Reference, str]:
    """The values that a task needs, each with the option that asks for it. Raises UserError if one is not `FORM`."""
    listed: dict[Reference, str] = {}
    for where, text in _texts(spec):
        for mark in MARK.finditer(text):
            if mark["wrong"]:
                shown = text[mark.start() : mark.start() + 40]
                raise UserError(where, f"{shown!r} is not {FORM}", allowed=FORM, fix="{{task: for the text itself")
            if mark["task"]:
                listed.setdefault(Reference(mark["task"], mark["metric"]), where)
    return listed


def filled(spec: TaskSpec, values: Mapping[Reference, str]) -> TaskSpec:
    """The task with these values in its words. A value that is not among them stays as it is written, and is unfilled."""
    missing: dict[str, None] = {}

    def value(mark: re.Match[str]) -> str:
        if mark["literal"]:
            return BEGIN
        found = values.get(Reference(mark["task"] or "", mark["metric"] or ""))
        if found is None:
            missing[mark[0]] = None
        return mark[0] if found is None else found

    made = with_texts(spec, lambda text: MARK.sub(value, text))
    return replace(made, unfilled=tuple(missing))


def with_texts(spec: TaskSpec, change: Callable[[str], str]) -> TaskSpec:
    """The task with its arguments, its shell's command line and its hyperparameters changed."""
    program = replace(
        spec.program, args=tuple(change(word) for word in spec.program.args), shell=change(spec.program.shell)
    )
    hyperparameters = {name: change(text) for name, text in spec.hyperparameters.items()}
    return replace(spec, program=program, hyperparameters=hyperparameters)


def words(spec: TaskSpec) -> list[str]:
    """All texts that may hold a value."""
    return [text for _, text in _texts(spec)]


def _texts(spec: TaskSpec) -> Iterator[tuple[str, str]]:
    of_task = f"of task {spec.task!r}"
    yield from ((f"arguments {of_task}", word) for word in spec.program.args)
    yield f"shell {of_task}", spec.program.shell
    yield from ((f"hyperparameter {name} {of_task}", text) for name, text in spec.hyperparameters.items())
