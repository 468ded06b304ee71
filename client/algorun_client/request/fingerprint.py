"""What decides the result of a task: an execution with the fingerprint of a completed one need not run. Pure.

`fingerprint_parts` makes one from a request.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from algorun.common.codec import loads
from algorun.common.secret_names import without_secrets
from algorun.common.secret_values import hidden
from algorun.job.entry import BUNDLED

FORMAT = 1
MOST_ROWS = 20_000  # of a group: more are kept as one hash, so that the object stays below some MB
ALL = "*"  # the row of such a group
OPTIONS, IMAGE, ENVIRONMENT, CODE = "options", "image", "environment", "code"
INPUT = "in."  # groups of inputs are called in.NAME
STEERING = ("engine", "hyperparameters.sagemaker_", "hyperparameters.mp_", "ALGORUN_")  # options and variables
JOB, UPSTREAM = "job", "fingerprint"  # the rows of an input that another task has left
HASH = re.compile(r"[0-9a-f]{64}")  # of a value that is not shown; other values are JSON
LONGEST = 120  # characters of a list of arguments in a difference


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Groups of rows: what each option, variable, file and object was. `unknown`: what could not be read, and why."""

    groups: Mapping[str, Mapping[str, str]]
    unknown: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """The same for the same task on every machine. "" if something is unknown: then nothing is equal to it."""
        if self.unknown:
            return ""
        content = json.dumps({"format": FORMAT, "groups": self.groups}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """For `jobs/NNNN/fingerprint.json`."""
        return {"format": FORMAT, "sha256": self.sha256, "unknown": list(self.unknown), "groups": self.groups}


def from_json(value: object) -> Fingerprint | None:
    """What `to_json` made; None for one of another version. Raises ValueError, KeyError or TypeError for anything else."""
    if not isinstance(value, dict) or not isinstance(value["groups"], dict):
        raise ValueError("no table of groups")
    if value["format"] != FORMAT:
        return None
    groups = {
        str(name): {str(row): str(text) for row, text in rows.items()} if isinstance(rows, dict) else {}
        for name, rows in value["groups"].items()
    }
    made = Fingerprint(groups, tuple(map(str, value["unknown"])))
    if made.sha256 != value["sha256"]:
        raise ValueError("it has another SHA-256 than it says")
    return made


def rows(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The rows of a group, in the order of their names; too many become one. Reads the pairs once."""
    kept: dict[str, str] = {}
    digest, count = hashlib.sha256(), 0
    for name, text in pairs:
        count += 1
        digest.update(json.dumps([name, text]).encode())
        if count <= MOST_ROWS:
            kept[name] = text
    return kept if count <= MOST_ROWS else {ALL: f"{count} {digest.hexdigest()}"}


def differences(before: Fingerprint, now: Fingerprint) -> tuple[str, ...]:
    """What has changed, one text for each option, variable, file or object; none if the fingerprints are equal."""
    found = [*before.unknown, *now.unknown]
    before, now = _plain(before), _plain(now)
    for group in sorted(before.groups.keys() | now.groups.keys()):
        old, new = before.groups.get(group, {}), now.groups.get(group, {})
        if any(each.startswith(f"{group}: ") for each in found):  # then its rows say nothing
            continue
        if before.groups.get(OPTIONS, {}).get(group) == now.groups.get(OPTIONS, {}).get(group):
            found += _of_group(group, old, new)  # else another source was asked for, which its option tells
    return tuple(dict.fromkeys(found))


def _plain(found: Fingerprint) -> Fingerprint:
    """Without options that say what the launcher does anyway: one rank per host, for a program of the user's that nothing has
    given an engine. Whoever has to say so now has said nothing before, and gets the same ranks."""
    options = dict(found.groups.get(OPTIONS, {}))
    is_bundled = options.get("program") in {json.dumps(name) for name in BUNDLED}
    if is_bundled or any(each.startswith(STEERING) for each in (*options, *found.groups.get(ENVIRONMENT, {}))):
        return found
    options.pop("per_host", None)
    if options.get("slots") == "1":
        del options["slots"]
    return Fingerprint({**found.groups, OPTIONS: options}, found.unknown)


def _of_group(group: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    if ALL in old or ALL in new:
        if old != new:
            yield f"{group}: files have changed; there are too many to tell which"
        return
    if JOB in old and JOB in new and group.startswith(INPUT) and set(old) == set(new) == {JOB, UPSTREAM}:
        if old != new:
            yield f"{group}: is now what {new[JOB]} left; it was {old[JOB]}"
        return
    for name in sorted(old.keys() | new.keys()):
        before, now = old.get(name), new.get(name)
        if before == now:
            continue
        is_shown = not any(HASH.fullmatch(text or "") for text in (before, now))
        if group in (OPTIONS, IMAGE) and is_shown:
            yield _option(name, before, now)
        else:
            label = f"{group}: {name}" if group != OPTIONS else name
            yield f"{label} {'is new' if before is None else 'is gone' if now is None else 'has changed'}"


def _option(name: str, before: str | None, now: str | None) -> str:
    if name == "arguments":
        return _arguments(_words(before), _words(now))
    if name == "shell":  # a secret may stand anywhere in it
        return f"shell {'is new' if before is None else 'is gone' if now is None else 'has changed'}"
    return f"{name}: was {before or 'absent'}, is {now or 'absent'}"


def _words(text: str | None) -> list[str]:
    """The arguments of a row; what is no list of texts counts as one argument."""
    try:
        found = loads(text or "[]")
    except ValueError:
        return [text or ""]
    return found if isinstance(found, list) and all(isinstance(each, str) for each in found) else [text or ""]


def _arguments(before: list[str], now: list[str]) -> str:
    """Only the words that differ, and the option before them."""
    begin = 0
    while begin < min(len(before), len(now)) and before[begin] == now[begin]:
        begin += 1
    end = 0
    while end < min(len(before), len(now)) - begin and before[-1 - end] == now[-1 - end]:
        end += 1
    begin = max(0, begin - 1)
    # A difference reaches terminals and logs.
    old, new = _public(before)[begin : len(before) - end], _public(now)[begin : len(now) - end]
    return f"arguments: were {_shown(old)}, are {_shown(new)}"


def _public(words: list[str]) -> list[str]:
    return [hidden(word) for word in without_secrets(words)]


def _shown(words: list[str]) -> str:
    text = json.dumps(words)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}.."
