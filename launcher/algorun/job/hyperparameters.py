"""Decodes hyperparameters into Python values, and makes the command line of the user's script from them. Pure.

The command line follows AWS's sagemaker-training 5.1.4, because users' scripts rely on it: keys in ASCII order; two
words per key, `--key value` (`-k value` for a key of one character); booleans as `True` and `False`; None and "" as an
empty word; lists as Python prints them; dictionaries as `k=v,k2=v2`.
"""

from __future__ import annotations

from collections.abc import Mapping

from algorun.common.codec import loads
from algorun.common.errors import UserError

TUNING_OBJECTIVE = "_tuning_objective_metric"  # jobs of SageMaker's tuner have it
PLATFORM_KEYS = (TUNING_OBJECTIVE, "default_user_module_name")
PLATFORM_PREFIXES = ("sagemaker_", "algorun_")
LONGEST = 128 * 1024  # bytes of one argument or variable, its final zero byte included: Linux's MAX_ARG_STRLEN


def decode(raw: object) -> object:
    """A hyperparameter's value. A string that is valid JSON is decoded ("0.10" becomes 0.1); any other stays ("007")."""
    if not isinstance(raw, str):
        return raw
    try:
        return loads(raw)
    except ValueError:
        return raw


def is_platform_key(key: str) -> bool:
    """True for keys that are meant for the launcher: the script does not get them."""
    return key.startswith(PLATFORM_PREFIXES) or key in PLATFORM_KEYS


def flag(raw: Mapping[str, object], key: str, where: str = "") -> bool:
    """The boolean value of a platform key, False if it is absent. SDKs send true, "true" or "True".

    Raises UserError on any other value.
    """
    value = decode(raw.get(key, False))
    if isinstance(value, str):
        try:
            import ast  # late: most jobs need it not at all, and every job waits for its start

            value = ast.literal_eval(value.strip().capitalize())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # {[]: 1} is a TypeError
            pass
    if value in (True, False, None):
        return bool(value)
    raise UserError(where or f"hyperparameter {key}", f"{raw[key]!r} is not a boolean", allowed="true or false")


def text(raw: Mapping[str, object], key: str) -> str:
    """A platform key's value as text, "" if it is absent. A JSON string loses its quotes."""
    value = decode(raw.get(key))
    return "" if value is None else str(value)


def argument(value: object) -> str:
    """A value as the word that follows its key on the command line."""
    if value is None or value == "":
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={value[key]}" for key in sorted(value))
    return str(value)


def argv(values: Mapping[str, object]) -> list[str]:
    """The command line for decoded hyperparameters: two words per key, keys in ASCII order.

    Raises UserError on a word that Linux cannot pass to a process: with a zero byte, with half of a surrogate pair, or
    of 128 KiB and more.
    """
    out: list[str] = []
    for key in sorted(values):
        name = f"--{key}" if len(key) > 1 else f"-{key}" if key else ""
        where = f"hyperparameter {key!r}"
        out += [possible(where, name), possible(where, argument(values[key]))]
    return out


def possible(where: str, element: str) -> str:
    """The word of a command line, unchanged. Raises UserError if Linux cannot pass it to a process."""
    if "\0" in element:
        raise UserError(where, "contains a zero byte, which a command line cannot carry", fix="remove \\u0000")
    try:
        size = len(element.encode())
    except UnicodeEncodeError as error:
        half = f"U+{ord(element[error.start]):04X}"
        raise UserError(where, f"contains {half}, half of a surrogate pair", allowed="Unicode text") from None
    if size >= LONGEST:
        raise UserError(
            where,
            f"is {size} bytes long: too long for one argument on Linux",
            allowed=f"fewer than {LONGEST} bytes",
            fix="pass it as a file in a channel",
        )
    return element
