"""`[task.NAME.sweep]`: one task for each point of a grid or a list. Pure.

A point is a task of its own, with its own jobs and state; code and local inputs are those of the swept task. Its name
follows from its parameters alone, so a grid that grows leaves the points that are done as they are.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from algorun.common.errors import UserError
from algorun.job.hyperparameters import decode
from algorun_client.request import names

from . import values
from .spec import TASK_VALUE, TaskSpec

KEYS = ("grid", "list", "parallel", "best")
MOST_POINTS = 500
MOST_PARALLEL = 500
HASH = 8  # hexadecimal digits: of 500 long names no two are alike, but once in 30,000 sweeps
MARK = re.compile(r"\{sweep:([^{}]*)\}")
NO_TEXTS = ("true", "false", "NaN", "Infinity", "-Infinity")  # what JSON writes for booleans and numbers without digits
GOAL_FORM = "max:METRIC or min:METRIC"
# Words of a metric's name that tell which way is better.
LOWER = frozenset({"loss", "error", "err", "perplexity", "ppl", "mae", "mse", "rmse", "wer", "fid"})
HIGHER = frozenset(
    {"accuracy", "acc", "acc1", "acc5", "top1", "top5", "auc", "f1", "map", "bleu", "score", "precision", "recall"}
)
GOAL_WORD = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Goal:
    """A metric, and True if its lowest value is the best one."""

    metric: str
    lowest: bool

    @property
    def text(self) -> str:
        """In words."""
        return f"{'lowest' if self.lowest else 'highest'} {self.metric}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSweep:
    """What a job file asks for."""

    where: str
    points: tuple[Mapping[str, str], ...]  # the parameters of each, in order
    parallel: int | None = None  # the most jobs that may run at the same time; None: all
    best: Goal | None = None  # the point that other tasks read

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters."""
        return tuple(dict.fromkeys(name for point in self.points for name in point))


def parse(where: str, raw: object) -> TaskSweep:
    """Reads the table. Raises UserError."""
    if not isinstance(raw, Mapping):
        raise UserError(where, f"{raw!r} is not a table", allowed=f"a table with {', '.join(KEYS)}")
    values.known(where, raw, KEYS)
    if ("grid" in raw) == ("list" in raw):
        both = "are both given" if "grid" in raw else "are both absent"
        raise UserError(where, f"grid and list {both}", allowed="one of them", fix="grid = { lr = [0.1, 0.01] }")
    points = _grid(f"{where} grid", raw["grid"]) if "grid" in raw else _list(f"{where} list", raw["list"])
    seen: dict[str, None] = {}
    for point in points:
        text = json.dumps(sorted(point.items()))
        if text in seen:
            raise UserError(where, f"{text_of(point)} comes twice", fix="drop one of the two")
        seen[text] = None
    return TaskSweep(
        where=where,
        points=points,
        parallel=values.count(f"{where} parallel", raw["parallel"], MOST_PARALLEL) if "parallel" in raw else None,
        best=parse_goal(f"{where} best", raw["best"]) if "best" in raw else None,
    )


def parse_goal(where: str, raw: object) -> Goal:
    """A goal from `max:accuracy`, `min:loss`, or a name that tells the way itself. Raises UserError."""
    given = values.text(where, raw)
    way, colon, metric = given.partition(":")
    if colon and way in ("max", "min") and metric:
        return Goal(metric, way == "min")
    words = {word.lower() for word in GOAL_WORD.findall(given)}
    if bool(words & LOWER) == bool(words & HIGHER):
        raise UserError(
            where, f"{given!r} does not say which way is better", allowed=GOAL_FORM, fix=f"max:{given}, or min:{given}"
        )
    return Goal(given, bool(words & LOWER))


def text_of(point: Mapping[str, str]) -> str:
    """The parameters of a point for people."""
    return ", ".join(f"{name}={value}" for name, value in point.items())


def point_task(task: str, point: Mapping[str, str]) -> str:
    """The name of a point: TASK.NAME-VALUE.NAME-VALUE, cut and with a hash if that is no name of a task."""
    wanted = ".".join((task, *(f"{name}-{value}" for name, value in point.items())))
    if len(wanted) <= names.LONGEST and names.NAME.fullmatch(wanted) and ".." not in wanted:
        return wanted
    end = f".{hashlib.sha256(wanted.encode('utf-8', 'surrogateescape')).hexdigest()[:HASH]}"
    return names.suggested(wanted)[: names.LONGEST - len(end)].rstrip("-_.") + end


def point_spec(spec: TaskSpec, sweep: TaskSweep, point: Mapping[str, str]) -> TaskSpec:
    """The task of a point. Raises UserError for a parameter that the task does not have, or that the sweep does not."""
    made = with_values(spec, sweep.where, point)
    return replace(made, task=point_task(spec.task, point), sweep_of=spec.task)


def with_values(spec: TaskSpec, where: str, point: Mapping[str, str]) -> TaskSpec:
    """The task itself with a point's values. Raises UserError as `point_spec`; `where`: the table of the parameters."""
    made = spec
    for _, word in spec.texts:
        for mark in MARK.finditer(word):
            if mark[1] not in point:
                raise UserError(
                    where, f"task {spec.task!r} has the word {mark[0]}", allowed=", ".join(point),
                    fix=f"add {mark[1]} to the sweep, or correct the word",
                )  # fmt: skip
    for name, value in point.items():
        made = _with(made, where, name, value)
    return made


def _with(spec: TaskSpec, where: str, name: str, value: str) -> TaskSpec:
    """A parameter's value in the place of `{sweep:NAME}`, else of a hyperparameter, else after an option of the program."""
    mark = f"{{sweep:{name}}}"
    marked = spec.with_texts(lambda text: text.replace(mark, value))
    if marked != spec:
        wholes = {key: as_hyperparameter(key, value) for key, text in spec.hyperparameters.items() if text == mark}
        return replace(marked, hyperparameters={**marked.hyperparameters, **wholes})
    if name in spec.hyperparameters:
        return replace(spec, hyperparameters={**spec.hyperparameters, name: as_hyperparameter(name, value)})
    args = _with_option(spec.program.args, name, value)
    if args is not None:
        return replace(spec, program=replace(spec.program, args=args))
    raise UserError(
        where,
        f"{name!r} is no parameter of task {spec.task!r}",
        allowed=f"an option --{name} of the program with a value, a hyperparameter, or a word with {mark}",
        fix=f'add "--{name}", "{value}" to run',
    )


def as_hyperparameter(name: str, value: str) -> str:
    """A parameter's value as a hyperparameter: a text such as 1.10 stays one."""
    return value if value in NO_TEXTS else str(values.hyperparameter(name, value))


def from_hyperparameter(name: str, text: str) -> str:
    """The parameter's value of which `as_hyperparameter` has made this."""
    value = decode(text)
    return value if isinstance(value, str) and as_hyperparameter(name, value) == text else text


def _with_option(args: Sequence[str], name: str, value: str) -> tuple[str, ...] | None:
    """The words with another value of an option; None if no option of this name has one."""
    options = {f"--{name}", f"--{name.replace('_', '-')}", f"--{name.replace('-', '_')}"}
    options |= {f"-{name}"} if len(name) == 1 else set()
    made, is_found = list(args), False
    for at, word in enumerate(args):
        option, equals, _ = word.partition("=")
        if option not in options:
            continue
        if equals:
            made[at], is_found = f"{option}={value}", True
        elif at + 1 < len(args) and not args[at + 1].startswith("--"):
            made[at + 1], is_found = value, True
    return tuple(made) if is_found else None


def _grid(where: str, raw: object) -> tuple[Mapping[str, str], ...]:
    """Every combination, the last parameter changing first."""
    if not isinstance(raw, Mapping) or not raw:
        raise UserError(where, f"{raw!r} is not a table of lists", allowed="such as { lr = [0.1, 0.01] }")
    lists: dict[str, list[str]] = {}
    count = 1
    for name, listed in raw.items():
        if not isinstance(listed, list) or not listed:
            raise UserError(f"{where}.{name}", f"{listed!r} is not a list of values", allowed="such as [0.1, 0.01]")
        lists[checked_name(where, name)] = [checked_value(f"{where}.{name}", value) for value in listed]
        count *= len(listed)
    _few(where, count)
    return tuple(dict(zip(lists, chosen, strict=True)) for chosen in itertools.product(*lists.values()))


def _list(where: str, raw: object) -> tuple[Mapping[str, str], ...]:
    if not isinstance(raw, list) or not raw or not all(isinstance(each, Mapping) and each for each in raw):
        raise UserError(where, f"{raw!r} is not a list of tables", allowed="such as [{ lr = 0.1 }, { lr = 0.01 }]")
    _few(where, len(raw))
    points = tuple(
        {checked_name(where, name): checked_value(f"{where}.{name}", value) for name, value in each.items()}
        for each in raw
    )
    for point in points:
        if missing := points[0].keys() ^ point.keys():
            raise UserError(
                where, f"{sorted(missing)[0]!r} is in some points only", fix="give every point the same parameters"
            )
    return tuple({name: point[name] for name in points[0]} for point in points)


def _few(where: str, count: int) -> None:
    if count > MOST_POINTS:
        raise UserError(where, f"{count} points", allowed=f"up to {MOST_POINTS}", fix="take fewer values")


def checked_name(where: str, name: str) -> str:
    """The name of a parameter. Raises UserError."""
    if not name or any(char in name for char in "{}=") or name != name.strip():
        raise UserError(where, f"{name!r} is not the name of a parameter", allowed="such as lr or batch-size")
    return name


def checked_value(where: str, raw: object) -> str:
    """A parameter's value as text. Raises UserError."""
    if isinstance(raw, bool | int | float | str):
        text = values.plain(where, raw)
        if TASK_VALUE in text:
            raise UserError(where, f"{text!r} is a value of another task", fix="write it in run, outside of the sweep")
        return text
    raise UserError(where, f"{raw!r} is not a value", allowed="a text, a number, true or false")
