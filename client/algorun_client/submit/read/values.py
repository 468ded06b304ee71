"""Values of options and of the job file, checked. Each function takes text (a flag) or a TOML value. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, time
from difflib import get_close_matches

from algorun.common.errors import UserError
from algorun.job.hyperparameters import argument, decode, is_platform_key
from algorun.job.setting_values import HIGHEST_PRICE
from algorun.job.values import count as whole

from .spec import InstanceGroup

UNITS_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")
SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(kb|mb|gb|tb)", re.IGNORECASE)
SIZE_UNITS = ("b", "kb", "mb", "gb", "tb")
CHANNEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_HOSTS = 10_000
MOST_CHOICES = 10  # kinds of hosts: each may wait for an hour before AWS says that it has none
PRICES = '{ "ml.g5.12xlarge" = 5.67 }: the price of one host for one hour, by instance type'


def text(where: str, raw: object) -> str:
    """A text that is not empty and holds no zero byte."""
    if not isinstance(raw, str):
        raise UserError(where, f"{raw!r} is not a text", allowed='a text, such as "abc"')
    if not raw or "\0" in raw:
        raise UserError(where, f"{raw!r} is {'empty' if not raw else 'a text with a zero byte'}", allowed="a text")
    return raw


def flag(where: str, raw: object) -> bool:
    """A boolean; a flag without a value gives True."""
    if not isinstance(raw, bool):
        raise UserError(where, f"{raw!r} is not a boolean", allowed="true or false")
    return raw


def count(where: str, raw: object, most: int = MOST_HOSTS, least: int = 1) -> int:
    """A whole number."""
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise UserError(where, f"{raw!r} is not a whole number", allowed=f"{least} to {most}")
    return whole(where, raw, most, least)


def duration_s(where: str, raw: object) -> int:
    """Seconds, from `12h`, `90m` or `1d12h`."""
    found = DURATION.fullmatch(raw) if isinstance(raw, str) and raw else None
    if found is None:
        fix = f"{raw}s, if these are seconds" if isinstance(raw, int) or str(raw).isdigit() else ""
        raise UserError(where, f"{raw!r} is not a duration", allowed="such as 12h, 90m or 1d12h", fix=fix)
    seconds = sum(int(number or 0) * unit_s for number, unit_s in zip(found.groups(), UNITS_S.values(), strict=True))
    if not seconds:
        raise UserError(where, f"{raw!r} is no time at all", allowed="1s or more")
    return seconds


def duration_text(seconds: int) -> str:
    """What `duration_s` reads as this time."""
    parts = []
    for unit, unit_s in UNITS_S.items():
        count_of, seconds = divmod(seconds, unit_s)
        parts.append(f"{count_of}{unit}" if count_of else "")
    return "".join(parts) or "0s"


def prices(where: str, raw: object) -> dict[str, float]:
    """The price of one host for one hour, by instance type."""
    if not isinstance(raw, Mapping):
        raise UserError(where, f"{raw!r} is not a table", allowed=PRICES)
    for instance, price in raw.items():
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not is_number or not 0 <= price < HIGHEST_PRICE:
            allowed = f"a number, 0 or more, below {HIGHEST_PRICE:g}"  # a job knows the price, and refuses higher ones
            raise UserError(f"{where}.{instance}", f"{price!r} is not a price", allowed=allowed)
        if not instance.startswith("ml."):
            raise UserError(where, f"{instance!r} is not an instance type", allowed=PRICES)
    return {instance: float(price) for instance, price in raw.items()}


def size(where: str, raw: object) -> int:
    """Bytes, from `500MB` or `2.5GB`, in powers of 1,000."""
    found = SIZE.fullmatch(raw) if isinstance(raw, str) else None
    if found is None:
        raise UserError(where, f"{raw!r} is not a size", allowed="such as 500MB or 2.5GB")
    return int(float(found[1]) * 1000 ** SIZE_UNITS.index(found[2].lower()))


def amount(where: str, raw: object) -> float:
    """An amount of money, in the currency of the prices."""
    try:
        found = math.nan if isinstance(raw, bool) else float(raw)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not 0 < found < math.inf:
        raise UserError(where, f"{raw!r} is not an amount", allowed="a number above 0, such as 50 or 12.5")
    return found


def words(where: str, raw: object) -> tuple[str, ...]:
    """A list of texts; they may be empty."""
    if isinstance(raw, str) or not isinstance(raw, Sequence) or not all(isinstance(item, str) for item in raw):
        raise UserError(where, f"{raw!r} is not a list of texts", allowed='such as ["train.py", "--epochs", "10"]')
    if any("\0" in item for item in raw):
        raise UserError(where, "a text has a zero byte, which a command line cannot carry", fix="remove \\u0000")
    return tuple(raw)


def names(where: str, raw: object) -> tuple[str, ...]:
    """A list, or one text with commas between the names."""
    listed = words(where, raw.split(",") if isinstance(raw, str) else raw)
    return tuple(text(where, name.strip()) for name in listed)


def plain(where: str, raw: object) -> str:
    """A value as text: texts as they are, anything else as JSON writes it. Raises UserError for a zero byte and for TOML's dates."""
    try:
        found = raw if isinstance(raw, str) else json.dumps(raw)
    except TypeError:
        dated = f"{raw} is a date or a time" if isinstance(raw, date | time) else f"{raw!r} holds a date or a time"
        allowed = "a text, a number, true or false, or a list or table of them"
        raise UserError(where, dated, allowed=allowed, fix='write it in quotes, such as "2026-05-27"') from None
    if "\0" in found:
        raise UserError(where, "a value has a zero byte, which a command line cannot carry", fix="remove \\u0000")
    return found


def hyperparameter(name: str, raw: object) -> object:
    """A hyperparameter of a job file. A text is in JSON's quotes, as SDKs send it, where the program would get another word:
    SageMaker's containers decode 1.10 to 1.1, and 12e4567 to inf. JSON's own texts, lists and tables stay."""
    if not isinstance(raw, str) or is_platform_key(name):
        return raw
    decoded = decode(raw)
    is_other = not isinstance(decoded, str | list | dict) and argument(decoded) != raw
    return json.dumps(raw) if is_other else raw


def one_of(where: str, raw: object, allowed: Sequence[str]) -> str:
    """One of some words; the error names the nearest one."""
    if raw not in allowed:
        near = get_close_matches(str(raw), list(map(str, allowed)), n=1)
        raise UserError(
            where, f"{raw!r} is unknown", allowed=", ".join(allowed), fix=f"did you mean {near[0]!r}?" if near else ""
        )
    return str(raw)


def group(where: str, name: str, raw: object) -> InstanceGroup:
    """`TYPExN`, or a table with `instance` and `hosts`."""
    if isinstance(raw, Mapping):
        known(where, raw, ("instance", "hosts"))
        return InstanceGroup(
            name=name,
            instance=text(f"{where} instance", raw.get("instance")),
            hosts=count(f"{where} hosts", raw.get("hosts", 1)),
        )
    instance, cross, hosts = str(raw).rpartition("x")
    if not cross or not hosts.isdigit() or not instance.startswith("ml."):
        raise UserError(where, f"{raw!r} is not TYPExN", allowed="such as gpu=ml.g5.12xlargex2")
    return InstanceGroup(name=name, instance=instance, hosts=count(where, hosts))


def host_choices(where: str, raw: object) -> tuple[tuple[str, int | None], ...]:
    """`TYPE`, or several in order of preference: `TYPE,TYPExN` or a list. The number of hosts is None where none is given."""
    found: list[tuple[str, int | None]] = []
    for name in names(where, raw):
        instance, cross, hosts = name.rpartition("x")
        own = (instance, count(where, hosts)) if cross and hosts.isdigit() else (name, None)
        if own in found:
            raise UserError(where, f"{name!r} comes twice", fix="drop one of the two")
        found.append(own)
    if not 1 <= len(found) <= MOST_CHOICES:
        raise UserError(where, f"{len(found)} kinds of hosts", allowed=f"1 to {MOST_CHOICES}", fix="name fewer")
    return tuple(found)


def channel_name(where: str, name: str) -> str:
    """The name of an input or output."""
    if CHANNEL.fullmatch(name) is None or name in (".", ".."):
        raise UserError(where, f"{name!r} is not a name", allowed="1 to 64 letters, digits, '.', '-' and '_'")
    return name


def known(where: str, table: Mapping[str, object], allowed: Sequence[str]) -> None:
    """Raises UserError if the table has another key; the error names the nearest one."""
    for key in table:
        if key not in allowed:
            near = get_close_matches(key, allowed, n=1)
            raise UserError(
                where,
                f"unknown key {key!r}",
                allowed=", ".join(allowed),
                fix=f"did you mean {near[0]!r}?" if near else "",
            )
