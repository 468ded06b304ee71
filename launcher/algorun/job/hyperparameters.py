"""Hyperparameters: three encodings in, Python values out, and the argv that a user's script gets. Pure.

The rules are those of AWS's sagemaker-training 5.1.4, whose users' scripts rely on them: keys in ASCII order,
`--key value` (one-character keys `-k value`), always two elements, booleans `True` and `False`, None and "" as an
empty argument, lists as Python writes them, dictionaries as `k=v,k2=v2`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from algorun.codec import loads
from algorun.errors import UserError

PLATFORM_KEYS = ("_tuning_objective_metric", "default_user_module_name")
PLATFORM_PREFIXES = ("sagemaker_", "algorun_")
LONGEST = 128 * 1024  # bytes of one argument or variable with its closing zero: Linux's MAX_ARG_STRLEN


def decode(raw: object) -> object:
    """A hyperparameter's value: JSON if it is JSON (`"0.10"` is 0.1), else the string itself (`"007"`, `"True"`)."""
    if not isinstance(raw, str):
        return raw
    try:
        return loads(raw)
    except ValueError:
        return raw


def is_platform_key(key: str) -> bool:
    """True for keys that speak to the launcher and never reach the script."""
    return key.startswith(PLATFORM_PREFIXES) or key in PLATFORM_KEYS


def flag(raw: Mapping[str, object], key: str) -> bool:
    """A yes or no of the platform's, read by its value (SDKs send `false` too) in any of the three encodings."""
    value = decode(raw.get(key, False))
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value.strip().capitalize())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # {[]: 1} is a TypeError
            pass
    if value in (True, False, None):
        return bool(value)
    raise UserError(f"hyperparameter {key}", f"{raw[key]!r} is neither yes nor no", allowed="true or false")


def text(raw: Mapping[str, object], key: str) -> str:
    """A platform key's value as text, "" where it is absent. JSON strings lose their quotes."""
    value = decode(raw.get(key))
    return "" if value is None else str(value)


def argument(value: object) -> str:
    """One value as the element of argv that follows its key."""
    if value is None or value == "":
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={value[key]}" for key in sorted(value))
    return str(value)


def argv(values: Mapping[str, object]) -> list[str]:
    """The command line of decoded hyperparameters, two elements each, keys in ASCII order.

    Raises UserError on what no process can be given: a zero byte, half of a surrogate pair, 128 KiB in one element.
    """
    out: list[str] = []
    for key in sorted(values):
        name = f"--{key}" if len(key) > 1 else f"-{key}" if key else ""
        out += [_possible(key, name), _possible(key, argument(values[key]))]
    return out


def _possible(key: str, element: str) -> str:
    where = f"hyperparameter {key!r}"
    if "\0" in element:
        raise UserError(where, "holds a zero byte, which no command line can carry", fix="remove \\u0000")
    try:
        size = len(element.encode())
    except UnicodeEncodeError as error:
        half = f"U+{ord(element[error.start]):04X}"
        raise UserError(where, f"holds {half}, half of a surrogate pair", allowed="Unicode text") from None
    if size >= LONGEST:
        raise UserError(
            where,
            f"is {size} bytes long, more than Linux takes as one argument",
            allowed=f"fewer than {LONGEST} bytes",
            fix="pass it as a file in a channel",
        )
    return element
