"""Metric definitions: algorun's own, those of the job, and those of the command line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from algorun.common.bounded_search import compiled
from algorun.common.errors import UserError
from algorun.job.metric_definitions import CLOSING, DEFINITIONS, ONE_MEAN_EACH

# No curves: the figures of the closing table are one number each, and the page draws each mean of train:loss by itself.
NOT_DRAWN = {(each["Name"], each["Regex"]) for each in (*CLOSING, *ONE_MEAN_EACH)}
LIKE = "NAME=REGEX with one group for the number, such as loss='loss=([0-9.]+)'"


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric to look for. `origin` names in errors where it comes from; "" for algorun's own."""

    name: str
    regex: re.Pattern[str]
    origin: str = ""
    is_asked_for: bool = False  # on the command line


def definition(name: str, regex: str, origin: str, *, is_asked_for: bool = False) -> Definition:
    """Raises UserError if `regex` is not one with a group."""
    try:
        pattern = compiled(regex)
    except ValueError as error:
        raise UserError(origin, f"metric {name!r}: {regex!r} is no regular expression: {error}", allowed=LIKE) from None
    if not name or pattern.groups < 1:
        raise UserError(origin, f"metric {name!r}: {regex!r} has no group for the number", allowed=LIKE)
    return Definition(name, pattern, origin, is_asked_for)


def from_option(text: str) -> Definition:
    """The value of --metric. Raises UserError."""
    name, sign, regex = text.partition("=")
    if not sign:
        raise UserError("--metric", f"{text!r} has no '='", allowed=LIKE)
    return definition(name, regex, "--metric", is_asked_for=True)


def merged(asked_for: Iterable[Definition], of_job: Iterable[Definition]) -> list[Definition]:
    """Those of the command line, then the job's, then algorun's own. Of one name the first counts.

    Those that are NOT_DRAWN are left out.
    """
    found: dict[str, Definition] = {}
    own = [Definition(each["Name"], re.compile(each["Regex"])) for each in DEFINITIONS]
    for each in (*asked_for, *of_job, *own):
        found.setdefault(each.name, each)
    return [each for each in found.values() if each.is_asked_for or (each.name, each.regex.pattern) not in NOT_DRAWN]


def is_bundled(each: Definition) -> bool:
    """True for a definition of algorun's own, which every submit adds: no job prints all of them."""
    return any(own["Name"] == each.name and own["Regex"] == each.regex.pattern for own in DEFINITIONS)


def refuse_silent(silent: Sequence[Definition], names: Iterable[str]) -> None:
    """Raises UserError if a metric that was asked for on the command line never appeared."""
    for each in silent:
        if each.is_asked_for:
            raise UserError(
                f"--metric {each.name}",
                f"no line of the job's logs matches {each.regex.pattern!r}",
                fix="compare it with a line of the logs; metrics that appeared: " + (", ".join(names) or "none"),
            )
