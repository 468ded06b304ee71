"""Hyperparameters: three encodings in, Python values out, and the argv that a user's script gets. Pure.

The rules are those of AWS's sagemaker-training 5.1.4, whose users' scripts rely on them: keys in ASCII order,
`--key value` (one-character keys `-k value`), always two elements, booleans `True` and `False`, None and "" as an
empty argument, lists as Python writes them, dictionaries as `k=v,k2=v2`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping

from .errors import UserError

PLATFORM_KEYS = ("_tuning_objective_metric", "default_user_module_name")
PLATFORM_PREFIXES = ("sagemaker_", "algorun_")


def decode(raw: object) -> object:
    """A hyperparameter's value: JSON if it is JSON (`"0.10"` is 0.1), else the string itself (`"007"`, `"True"`)."""
    if not isinstance(raw, str):
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw


def is_platform_key(key: str) -> bool:
    """True for keys that speak to the launcher and never reach the script."""
    return key.startswith(PLATFORM_PREFIXES) or key in PLATFORM_KEYS


def user_values(raw: Mapping[str, object]) -> dict[str, object]:
    """The user's own hyperparameters, decoded, in ASCII order of their keys."""
    return {key: decode(raw[key]) for key in sorted(raw) if not is_platform_key(key)}


def flag(raw: Mapping[str, object], key: str) -> bool:
    """A yes or no of the platform's, read by its value (SDKs send `false` too) in any of the three encodings."""
    value = decode(raw.get(key, False))
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value.strip().capitalize())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
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
    """The command line of decoded hyperparameters, two elements each."""
    out: list[str] = []
    for key in sorted(values):
        out += [f"-{key}" if len(key) == 1 else f"--{key}", argument(values[key])]
    return out
