"""The options of a job as fields of a frozen dataclass: what each means, allows, and does to a job that resumes."""

import dataclasses
import types
import typing
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

T = TypeVar("T")
LARGEST = 2**31 - 1  # of a whole number without a bound of its own: NumPy and torch count in 64 bits, also its products


class OnResume(Enum):
    """What becomes of a job that resumes from a checkpoint with another value of an option."""

    FREE = auto()
    """Training goes on without a word: layout, length, log, saves and folders change no result."""
    COMPARED = auto()
    """Training goes on with the new value, and a warning names both."""
    BATCH = auto()
    """It counts in the global batch, which is compared."""
    IDENTITY = auto()
    """The checkpoint is refused: the job's identity holds what the option decides about model, data or order."""
    ARTIFACT = auto()
    """It changes only what is written after the last step."""


@dataclass(frozen=True, slots=True)
class OptionRule:
    """What an option means, and which values it allows. Bounds are inclusive, except `above`. `many`: words separated by
    commas, which may also come as a list.

    `only_with`: another option, and the value of it without which this one has no effect.
    """

    help: str
    on_resume: OnResume
    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    only_with: tuple[str, object] | None = None
    many: bool = False


class _Limits(TypedDict, total=False):
    """The fields of `OptionRule` that an option may give by name."""

    above: float
    at_least: float
    at_most: float
    choices: tuple[str, ...]
    aliases: tuple[str, ...]
    only_with: tuple[str, object]
    many: bool


def option(default: T, text: str, on_resume: OnResume, **rule: Unpack[_Limits]) -> T:
    """A field of an options dataclass: its default, and its `OptionRule` with `text` as the help."""
    return dataclasses.field(default=default, metadata={"rule": OptionRule(text, on_resume, **rule)})


def values_of(options: object, kinds: Collection[OnResume]) -> dict[str, str | int | float | None]:
    """The values of the options of these kinds, by name, as JSON has them. One without effect is left out."""
    found = {}
    for known in options_of(type(options)).values():
        other = known.rule.only_with
        if known.rule.on_resume in kinds and (other is None or getattr(options, other[0]) == other[1]):
            value = getattr(options, known.name)
            found[known.name] = str(value) if isinstance(value, Path) else value
    return found


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a dataclass, with the type of its values."""

    name: str
    kind: type
    default: object
    rule: OptionRule

    @property
    def flag(self) -> str:
        """As on the command line."""
        return "--" + self.name.replace("_", "-")

    def allowed(self) -> str:
        """Which values are allowed, in words."""
        rule = self.rule
        if rule.choices:
            return ", ".join(rule.choices)
        words = {int: "a whole number", float: "a number", bool: "True or False", Path: "a path"}.get(
            self.kind, "a text"
        )
        if rule.above is not None:
            words += f" above {rule.above:.12g}"
        if rule.at_least is not None:
            words += f" of at least {rule.at_least:.12g}"
        if self.most is not None:
            words += f" and at most {self.most:.12g}"
        return words

    @property
    def most(self) -> float | None:
        """The largest number that is allowed."""
        return LARGEST if self.rule.at_most is None and self.kind is int else self.rule.at_most


def options_of(cls: type) -> dict[str, Option]:
    """The options of a dataclass, by name."""
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if isinstance(kind, types.UnionType):
            kind = next(k for k in typing.get_args(kind) if k is not types.NoneType)
        found[field.name] = Option(field.name, kind, field.default, field.metadata["rule"])
    return found
