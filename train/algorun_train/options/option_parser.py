"""Reads a frozen dataclass from a command line and a TOML file, with errors that name the option and the fix.

SageMaker turns hyperparameters into `--key value` pairs: always two elements, booleans as `True`/`False`, one-letter
keys as `-k value`, None and "" as an empty element. In keys `-` and `_` are equal. `--key=value` and a bare `--flag` work
too. An empty value means "not set": the option keeps its default. So do `None`, which an Estimator without `source_dir`
writes, and `null`, which the drivers of SDK v3 write.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from algorun_train.common.errors import UserError

from .option_rules import Option, options_of
from .option_values import LONGEST, NOT_SET, convert, short

T = TypeVar("T")
CONFIG = "config"  # the option that names a TOML file; it is none of the job's
# Names that other trainers have for an option: only a message uses them.
ELSEWHERE = {
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "train_batch_size": "batch_size",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulation",
    "max_grad_norm": "clip_norm",
    "block_size": "context",
    "max_seq_length": "context",
}


def read_options(cls: type[T], argv: list[str]) -> T:
    """Reads one `cls`. An option of `argv` wins over the file that `--config` names, and the file over the default.

    Raises UserError for an unknown option (the text names the nearest known one), a value that is not allowed, a missing
    or broken file, and an option that is given twice with different values.
    """
    options = options_of(cls)
    names = {alias: o for o in options.values() for alias in (o.name, *o.rule.aliases)}
    given = _pairs(argv, names)
    file = given.pop(CONFIG, "")
    values: dict[str, object] = {}
    if file not in NOT_SET:
        values |= _from_file(Path(file), names)
    for key, text in given.items():
        value = convert(_find(key, names, "the command line"), text, "the command line")
        if value is not None:
            values[names[key].name] = value
    return cls(**values)


def from_values(cls: type[T], values: Mapping[str, object], source: str) -> T:
    """As `read`, for values that a call was given by name. None means the default; errors name the call as `source`."""
    names = {o.name: o for o in options_of(cls).values()}
    found = {key: convert(_find(key, names, source), str(value), source) for key, value in values.items()
             if value is not None}  # fmt: skip
    return cls(**{key: value for key, value in found.items() if value is not None})


def _pairs(argv: list[str], names: dict[str, Option]) -> dict[str, str]:
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
            bare = not rest or _is_option(rest[0], names)
            if known is None and bare and key != CONFIG:
                _find(key, names, "the command line")
            if known and known.kind is bool and bare:
                text = "True"
            elif bare:
                found_next = f", the next word is {short(rest[0])}" if rest else ""
                raise UserError(f"option {word} has no value{found_next}; fix: give it one, as in {word}=VALUE")
            else:
                text = rest.pop(0)
        key = known.name if known else key
        if found.get(key, text) != text:
            values = f"{short(found[key])} and {short(text)}"
            raise UserError(f"option {word} is given twice, with {values}; fix: keep one of them")
        found[key] = text
    return found


def _is_option(word: str, names: dict[str, Option]) -> bool:
    """Whether a word is an option, not the value of the one before it. Negative numbers are values."""
    return (word.startswith("--") and len(word) > 2) or (word.startswith("-") and word[1:] in names)


def _find(key: str, names: dict[str, Option], source: str) -> Option:
    if key in names:
        return names[key]
    import difflib  # only an error needs it

    flag = names.get(key.removeprefix("no_")) if key.startswith("no_") else None
    meant = [name for name in (ELSEWHERE.get(key.lower(), key.lower()),) if name in names]
    near = meant or difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]].flag}?" if near else "see --help for all options"
    if flag is not None and flag.kind is bool:
        hint = f"{flag.flag} False"
    dashes = "-" if len(key) == 1 else "--"
    raise UserError(f"unknown option {dashes}{key[:LONGEST].replace('_', '-')} from {source}; fix: {hint}")


def _from_file(path: Path, names: dict[str, Option]) -> dict[str, object]:
    import tomllib  # imported late: every start would wait for it, and most do not use it

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors of Windows write a byte order mark
    except OSError as error:
        raise UserError(
            f"option --config: {path} cannot be read: {error.strerror}; fix: give a readable TOML file"
        ) from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or brackets nested too deeply
        raise UserError(
            f"option --config: {path} is not valid TOML: {error}; fix: write lines such as lr = 0.001"
        ) from None
    values: dict[str, object] = {}
    for key, raw in table.items():
        known = _find(key.replace("-", "_"), names, str(path))
        if isinstance(raw, list) and known.rule.many:
            raw = ",".join(map(str, raw))
        if isinstance(raw, (dict, list)):
            raise UserError(
                f"{path}: {key} holds a {type(raw).__name__}; allowed: {known.allowed()}; fix: a plain value"
            )
        value = convert(known, str(raw), str(path))
        if values.get(known.name, value) != value:
            raise UserError(
                f"{path}: {key} and another name of {known.flag} have different values, {value!r} and "
                f"{values[known.name]!r}; fix: keep one of them"
            )
        if value is not None:
            values[known.name] = value
    return values


def answer_help(cls: type, program: str, argv: list[str]) -> bool:
    """Prints all options if `argv` asks for help. Returns whether it did."""
    if "--help" not in argv and "-h" not in argv:
        return False
    print(help_text(cls, program))
    return True


def help_text(cls: type, program: str) -> str:
    """All options of `cls`, one per line: default, meaning, allowed values."""
    rows = [("--config", "", "a TOML file with options; the command line wins over it")]
    for known in options_of(cls).values():
        aliases = [("-" if len(a) == 1 else "--") + a.replace("_", "-") for a in known.rule.aliases]
        default = "" if known.default is None else str(known.default)
        rows.append((", ".join([known.flag, *aliases]), default, f"{known.rule.help} ({known.allowed()})"))
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    lines = [f"{flag:{widths[0]}}  {default:{widths[1]}}  {text}" for flag, default, text in rows]
    return "\n".join([f"usage: python -m {program} [--option value ..]", "", *lines])
