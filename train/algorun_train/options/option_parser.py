"""Reads a frozen dataclass from a command line and a TOML file, with errors that name the option and the fix.

SageMaker turns hyperparameters into `--key value` pairs: always two elements, booleans as `True`/`False`, one-letter
keys as `-k value`, None and "" as an empty element. In keys `-` and `_` are equal. `--key=value` and a bare `--flag` work
too. An empty value means "not set": the option keeps its default.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from algorun_train.common.errors import UserError

T = TypeVar("T")
TRUE, FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}


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
class Rule:
    """What an option means, and which values it allows. Bounds are inclusive, except `above`.

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


class _Limits(TypedDict, total=False):
    """The fields of `Rule` that an option may give by name."""

    above: float
    at_least: float
    at_most: float
    choices: tuple[str, ...]
    aliases: tuple[str, ...]
    only_with: tuple[str, object]


def option(default: T, text: str, on_resume: OnResume, **rule: Unpack[_Limits]) -> T:
    """A field of an options dataclass: its default, and its `Rule` with `text` as the help."""
    return dataclasses.field(default=default, metadata={"rule": Rule(text, on_resume, **rule)})


def values_of(options: object, kinds: Collection[OnResume]) -> dict[str, str | int | float | None]:
    """The values of the options of these kinds, by name, as JSON has them. One without effect is left out."""
    found = {}
    for known in _options(type(options)).values():
        other = known.rule.only_with
        if known.rule.on_resume in kinds and (other is None or getattr(options, other[0]) == other[1]):
            value = getattr(options, known.name)
            found[known.name] = str(value) if isinstance(value, Path) else value
    return found


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    kind: type
    optional: bool
    default: object
    rule: Rule

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def allowed(self) -> str:
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
        if rule.at_most is not None:
            words += f" and at most {rule.at_most:.12g}"
        return words


def _options(cls: type) -> dict[str, _Option]:
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        kind, optional = hints[field.name], False
        if isinstance(kind, types.UnionType):
            kind, optional = next(k for k in typing.get_args(kind) if k is not types.NoneType), True
        found[field.name] = _Option(field.name, kind, optional, field.default, field.metadata["rule"])
    return found


def read(cls: type[T], argv: list[str]) -> T:
    """Reads one `cls`. An option of `argv` wins over the file that `--config` names, and the file over the default.

    Raises UserError for an unknown option (the text names the nearest known one), a value that is not allowed, a missing
    or broken file, and an option that is given twice with different values.
    """
    options = _options(cls)
    names = {alias: o for o in options.values() for alias in (o.name, *o.rule.aliases)}
    given = _pairs(argv, names)
    file = given.pop("config", None)
    values: dict[str, object] = {}
    if file:
        values |= _from_file(Path(file), names)
    for key, text in given.items():
        value = _convert(_find(key, names, "the command line"), text, "the command line")
        if value is not None:
            values[names[key].name] = value
    return cls(**values)


def from_values(cls: type[T], values: Mapping[str, object], source: str) -> T:
    """As `read`, for values that a call was given by name. None means the default; errors name the call as `source`."""
    names = {o.name: o for o in _options(cls).values()}
    found = {key: _convert(_find(key, names, source), str(value), source) for key, value in values.items()
             if value is not None}  # fmt: skip
    return cls(**{key: value for key, value in found.items() if value is not None})


def _pairs(argv: list[str], names: dict[str, _Option]) -> dict[str, str]:
    """`--key value`, `--key=value`, `-k value` and a bare `--flag` as {canonical key: text}."""
    found: dict[str, str] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            raise UserError(
                f"argument {word!r} is not an option; allowed: --key value pairs; fix: remove it or name it"
            )
        key, equals, text = word.lstrip("-").partition("=")
        key = key.replace("-", "_")
        known = names.get(key)
        if not equals:
            bare = not rest or (rest[0].startswith("--") and len(rest[0]) > 2)
            if known and known.kind is bool and bare:
                text = "True"
            elif not rest:
                raise UserError(f"option {word} has no value; fix: give it one, as in {word} VALUE")
            else:
                text = rest.pop(0)
        key = known.name if known else key
        if found.get(key, text) != text:
            raise UserError(f"option {word} is given twice, with {found[key]!r} and {text!r}; fix: keep one of them")
        found[key] = text
    return found


def _find(key: str, names: dict[str, _Option], source: str) -> _Option:
    if key in names:
        return names[key]
    import difflib  # only an error needs it

    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]].flag}?" if near else "see --help for all options"
    dashes = "-" if len(key) == 1 else "--"
    raise UserError(f"unknown option {dashes}{key.replace('_', '-')} from {source}; fix: {hint}")


def _from_file(path: Path, names: dict[str, _Option]) -> dict[str, object]:
    import tomllib  # few jobs need it, and its import would delay every start

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"option --config: {path} cannot be read: {error.strerror}; fix: give a readable TOML file"
        ) from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or brackets nested too deeply
        raise UserError(
            f"option --config: {path} is not valid TOML: {error}; fix: write lines such as lr = 0.001"
        ) from None
    values = {}
    for key, raw in table.items():
        known = _find(key.replace("-", "_"), names, str(path))
        if isinstance(raw, (dict, list)):
            raise UserError(
                f"{path}: {key} holds a {type(raw).__name__}; allowed: {known.allowed()}; fix: a plain value"
            )
        value = _convert(known, str(raw), str(path))
        if value is not None:
            values[known.name] = value
    return values


def _convert(known: _Option, text: str, source: str) -> object:
    """The value of `text`; None if it is empty, which means the default."""
    if text == "" or (text == "None" and known.optional):
        return None
    rule = known.rule
    try:
        value = _parse(known.kind, text)
        outside = (
            (rule.above is not None and not value > rule.above)
            or (rule.at_least is not None and not value >= rule.at_least)
            or (rule.at_most is not None and not value <= rule.at_most)
            or (rule.choices and value not in rule.choices)
        )
    except ValueError:
        outside = True
    if outside:
        fix = f"give one of them, for example {known.flag} {_example(known)}"
        raise UserError(
            f"option {known.flag}: {text!r} from {source} is not allowed; allowed: {known.allowed()}; fix: {fix}"
        )
    return value


def _parse(kind: type, text: str) -> Any:  # Any: an object of the type `kind`
    if kind is bool:
        if text.lower() in TRUE | FALSE:
            return text.lower() in TRUE
        raise ValueError
    if kind is int:
        number = float(text)  # a tuning job writes whole numbers as 32.0
        if not math.isfinite(number) or number != int(number):
            raise ValueError
        return int(text) if text.lstrip("+-").isdigit() else int(number)
    if kind is float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError
        return number
    return kind(text)


def _example(known: _Option) -> str:
    if known.default is not None:
        return str(known.default)
    if known.rule.choices:
        return known.rule.choices[0]
    return str(max(known.rule.at_least or 0, 1)) if known.kind in (int, float) else "VALUE"


def answer_help(cls: type, program: str, argv: list[str]) -> bool:
    """Prints all options if `argv` asks for help. Returns whether it did."""
    if "--help" not in argv and "-h" not in argv:
        return False
    print(help_text(cls, program))
    return True


def help_text(cls: type, program: str) -> str:
    """All options of `cls`, one per line: default, meaning, allowed values."""
    rows = [("--config", "", "a TOML file with options; the command line wins over it")]
    for known in _options(cls).values():
        aliases = [("-" if len(a) == 1 else "--") + a.replace("_", "-") for a in known.rule.aliases]
        default = "" if known.default is None else str(known.default)
        rows.append((", ".join([known.flag, *aliases]), default, f"{known.rule.help} ({known.allowed()})"))
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    lines = [f"{flag:{widths[0]}}  {default:{widths[1]}}  {text}" for flag, default, text in rows]
    return "\n".join([f"usage: python -m {program} [--option value ..]", "", *lines])
