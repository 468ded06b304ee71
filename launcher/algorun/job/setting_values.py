"""What the variables `ALGORUN_*` may hold: each function reads one kind of value from the variable `name` with this `text`,
and raises UserError where it is none. Pure."""

from __future__ import annotations

from collections.abc import Callable

from algorun.common import REQUEST_FORMAT as HIGHEST_FORMAT
from algorun.common.errors import UserError

from .values import MOST_SECONDS, count, names, positive, seconds

NEVER_S = MOST_SECONDS  # the value of `off`: wait forever
MOST_RESTARTS = 1000
HIGHEST_PORT = 65535
HIGHEST_PRICE = 1e9  # of a host and hour, in any currency
MOST_TRACED = 1000  # steps
WINDOW = f"FIRST-LAST: FIRST from 2, up to {MOST_TRACED} steps"
MOST_FORMATS = 1_000_000
LEAST_STORE_MB, MOST_STORE_MB = 75, 16 * 1024**2  # Ray refuses a smaller object store


def text_of(name: str, text: str) -> str:
    """Any text."""
    return text


def is_one(name: str, text: str) -> bool:
    """True for 1."""
    return text == "1"


def is_set(name: str, text: str) -> bool:
    """True for any value."""
    return True


def switch(name: str, text: str) -> bool:
    """1 or 0."""
    if text not in ("0", "1"):
        raise UserError(name, f"{text!r} is neither 1 nor 0", allowed="1, 0")
    return text == "1"


def seconds_or_off(name: str, text: str) -> float:
    """Seconds; NEVER_S for `off`."""
    return NEVER_S if text == "off" else seconds(name, text)


def unless_off(name: str, text: str) -> bool:
    """False for `off`, which is the only value."""
    if text != "off":
        raise UserError(name, f"{text!r} is not allowed", allowed="off", fix="off, or unset it")
    return False


def word_of(*words: str) -> Callable[[str, str], str]:
    """One of some words."""

    def parse(name: str, text: str) -> str:
        if text not in words:
            raise UserError(
                name, f"{text!r} is not allowed", allowed=", ".join(words), fix=f"one of them, or unset {name}"
            )
        return text

    return parse


def words_of(*words: str) -> Callable[[str, str], tuple[str, ...]]:
    """Some of some words, separated by commas."""

    def parse(name: str, text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        for each in found:
            if each not in words:
                raise UserError(
                    name, f"{each!r} is not allowed", allowed=", ".join(words), fix=f"some of them, or unset {name}"
                )
        return found

    return parse


MEASURED_S, LEAST_MEASURED_S, MOST_MEASURED_S = 60.0, 5.0, 3600.0


def measurement(name: str, text: str) -> tuple[str, float] | None:
    """`measure` or `strict`, and after a colon for how many seconds."""
    kind, colon, given = text.partition(":")
    allowed = f"measure, strict, each also with seconds from {LEAST_MEASURED_S:g} to {MOST_MEASURED_S:g}: measure:20"
    try:
        number = float(given) if colon else MEASURED_S
    except ValueError:
        number = -1.0
    if kind not in ("measure", "strict") or not LEAST_MEASURED_S <= number <= MOST_MEASURED_S:
        raise UserError(name, f"{text!r} is not allowed", allowed=allowed, fix=f"one of them, or unset {name}")
    return kind, number


def restarts(name: str, text: str) -> int:
    """How often a failed job restarts."""
    return count(name, text, MOST_RESTARTS, least=0)


def price(name: str, text: str) -> float:
    """The price of a host and hour."""
    value = positive(text, HIGHEST_PRICE)
    if value is None:
        raise UserError(
            name, f"{text!r} is not a price", allowed=f"a number above 0 and below {HIGHEST_PRICE:g}, such as 1.5"
        )
    return value


def port(name: str, text: str) -> int:
    """A TCP port."""
    return count(name, text, HIGHEST_PORT)


def object_store_mb(name: str, text: str) -> int:
    """The size of Ray's object store."""
    return count(name, text, MOST_STORE_MB, LEAST_STORE_MB)


def window(name: str, text: str) -> tuple[int, int]:
    """The first and the last step of a window."""
    parts = text.split("-")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) <= 15 for part in parts):
        raise UserError(name, f"{text!r} is no window of steps", allowed=WINDOW, fix="such as 50-60")
    first, last = int(parts[0]), int(parts[1])
    if not 2 <= first <= last < first + MOST_TRACED:
        raise UserError(name, f"{text!r} is no window of steps", allowed=WINDOW, fix="such as 50-60")
    return first, last


def request_format(name: str, text: str) -> int:
    """The format of a request that this algorun knows."""
    asked = count(name, text, MOST_FORMATS)
    if asked > HIGHEST_FORMAT:
        raise UserError(
            name,
            f"the request has format {asked}, and this image's algorun knows no format above {HIGHEST_FORMAT}",
            fix="use an image of the client's version or newer",
        )
    return asked


def expression(name: str, text: str) -> str:
    """A regular expression that Python can compile."""
    import re  # late: most jobs do not use it

    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        raise UserError(
            name, f"{text!r} is no regular expression: {error}", allowed="one of Python's re, such as step [0-9]+"
        ) from None
    return text


def expressions(name: str, text: str) -> dict[str, str]:
    """A JSON object of regular expressions, each with a group for a number, and perhaps one named `step`."""
    import re  # late: most jobs do not use it

    from algorun.common.codec import loads

    allowed = 'such as {"loss": "loss=([0-9.]+)"}'
    try:
        value = loads(text)
    except ValueError as error:
        raise UserError(name, f"not JSON: {error}", allowed=allowed) from None
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise UserError(name, "not an object of texts", allowed=allowed)
    for metric, regex in value.items():
        found = re.compile(expression(f"{name}: {metric}", regex))
        if found.groups != 1 + ("step" in found.groupindex):
            raise UserError(
                f"{name}: {metric}", f"{regex!r} has {found.groups} groups",
                allowed=f"one for the number, and one named step if the line has it; {allowed}",
            )  # fmt: skip
    return value


def name_list(name: str, text: str) -> tuple[str, ...]:
    """Names: a JSON list, or words."""
    from algorun.common.codec import loads  # imported late: every job would wait for it, and most do not use it

    try:
        value = loads(text)
    except ValueError:
        value = text
    return names(name, value)
