"""Mutations that know the form of an input: JSON stays JSON, also within its own strings. Deterministic by `random`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from .reader import PART

LONGEST = 8 * 1024  # bytes of one input
DEEP = re.compile(r'"@deep (\d+)@"')
DEPTHS = (2, 50, 300, *range(880, 1000), 5_000)  # around the interpreter's own limit of recursion, and far beyond
NUMBERS = (0, 1, -1, 2, 255, 256, 4096, 4097, 65535, 65536, 2**31, 2**63, -(2**63), 10**12, 10**400, 0.5, -0.0, 1e308)
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "\ud800",
        "é",
        "²",
        "１",
        "🚀",
        "a" * 300,
        "a" * 5000,
        "../x",
        "/",
        ".",
        "..",
        "~",
        "-",
        "--",
    ),
    *(
        "true",
        "False",
        "null",
        "None",
        "nan",
        "Infinity",
        "1e999",
        "-0",
        "0x10",
        "1_0",
        "9" * 5000,
        "{}",
        "[]",
        '"',
        "'",
    ),
    *(
        "[[1]]",
        "{[]: 1}",
        "{{}}",
        "[" * 200,
        "$(x)",
        "`x`",
        "%s",
        "{0}",
        "\\",
        "\x1b[0m",
        "=",
        ",",
        ":",
        "@",
        "file:///",
    ),
    *("s3://b/k", "http://[", "algo-1", "algo-2", "sagemaker_program", "algorun_args", "algorun_slots", "train.py"),
)
Other = float("nan"), float("inf"), None, True, False, [], {}, [[]], [{}], {"": None}


def any_value(random: Random) -> Any:
    """A value that readers seldom expect."""
    match random.randrange(6):
        case 0:
            return random.choice(NUMBERS)
        case 1 | 2:
            return random.choice(TEXTS)
        case 3:
            return f"@deep {random.choice(DEPTHS)}@"
        case 4:
            return json.dumps(random.choice((random.choice(NUMBERS), random.choice(TEXTS), [1], {"a": [1]}, [[1], {}])))
        case _:
            return random.choice(Other)


def change(value: Any, random: Random) -> Any:
    """The same value with one change somewhere in it."""
    if isinstance(value, (dict, list)) and value and random.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = random.choice(keys)
        copy = value.copy()
        match random.randrange(8):
            case 0:
                del copy[key]
            case 1 if isinstance(copy, dict):
                copy[random.choice((*keys, *TEXTS))] = copy.pop(key)
            case 2 if isinstance(copy, dict):
                copy[str(random.choice(TEXTS))] = any_value(random)
            case 3 if isinstance(copy, list):
                copy.insert(key, copy[random.randrange(len(copy))])
            case _:
                copy[key] = change(copy[key], random)
        return copy
    if isinstance(value, str) and random.random() < 0.5:
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            return text(value, random)
        return dumped(change(inner, random)) if random.random() < 0.7 else text(value, random)
    return any_value(random)


def text(value: str, random: Random) -> str:
    """Cut, repeated, or with a word in it."""
    at, to = sorted((random.randint(0, len(value)), random.randint(0, len(value))))
    match random.randrange(4):
        case 0:
            return value[:at] + value[to:]
        case 1:
            return value[:to] + value[at:]
        case 2:
            return value[:at] + random.choice(TEXTS) + value[at:]
        case _:
            return value[:at] + chr(random.randrange(1, 0x250)) + value[at + 1 :]


def dumped(value: Any) -> str:
    """JSON text; where the value asks for it, nested deeper than any encoder goes."""
    shown = json.dumps(value, ensure_ascii=True)
    return DEEP.sub(lambda found: "[" * int(found[1]) + "]" * int(found[1]), shown)


def raw(data: bytes, random: Random) -> bytes:
    """Any bytes: cut, repeated, flipped."""
    at, to = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    match random.randrange(6):
        case 0:
            return data[:at] + data[to:]
        case 1:
            return data[:to] + data[at:]
        case 2:
            return data[:at] + random.choice(TEXTS).encode("utf-8", "surrogatepass") + data[at:]
        case 3:
            return data[:at] + random.randbytes(random.choice((1, 2, 8))) + data[to:]
        case _:
            return data[:at] + random.randbytes(1) + data[at + 1 :]


def as_json(data: bytes, random: Random) -> bytes:
    """One JSON document."""
    if random.random() < 0.85:
        try:
            return dumped(change(json.loads(data), random)).encode()
        except (ValueError, RecursionError):
            pass
    return raw(data, random)


def of_parts(*each: Callable[[bytes, Random], bytes]) -> Callable[[bytes, Random], bytes]:
    """An input of as many parts, each with a mutation of its own."""

    def mutate(data: bytes, random: Random) -> bytes:
        found = data.split(PART)
        for _ in range(random.choice((1, 1, 2, 4))):
            at = random.randrange(len(found))
            found[at] = each[min(at, len(each) - 1)](found[at], random)
        return PART.join(found)[:LONGEST]

    return mutate


def in_pieces(one: Callable[[bytes, Random], bytes]) -> Callable[[bytes, Random], bytes]:
    """A stream in pieces: lines are changed, pieces are cut, swapped, repeated and dropped."""

    def mutate(data: bytes, random: Random) -> bytes:
        found = data.split(PART)
        for _ in range(random.choice((1, 1, 2, 3))):
            at = random.randrange(len(found))
            match random.randrange(8):
                case 0:  # the same bytes in two writes
                    cut = random.randint(0, len(found[at]))
                    found[at : at + 1] = [found[at][:cut], found[at][:1] + found[at][cut:]]
                case 1:
                    found.insert(random.randint(0, len(found)), found[at])
                case 2 if len(found) > 1:
                    del found[at]
                case 3:
                    other = random.randrange(len(found))
                    found[at], found[other] = found[other], found[at]
                case _:
                    lines = found[at].split(b"\n")
                    line = random.randrange(len(lines))
                    lines[line] = (
                        lines[line][:1] + one(lines[line][1:], random) if line == 0 else one(lines[line], random)
                    )
                    found[at] = b"\n".join(lines)
        return PART.join(found)[:LONGEST]

    return mutate


def words(separator: bytes, known: Sequence[str]) -> Callable[[bytes, Random], bytes]:
    """Words with a separator, some of them from a list."""

    def mutate(data: bytes, random: Random) -> bytes:
        found = data.split(separator)
        at = random.randrange(len(found))
        match random.randrange(6):
            case 0:
                del found[at]
            case 1:
                found.insert(at, found[random.randrange(len(found))])
            case 2 | 3:
                found.insert(at, random.choice((*known, *TEXTS)).encode("utf-8", "surrogatepass"))
            case 4:
                found[at] = random.choice((*known, *TEXTS)).encode("utf-8", "surrogatepass")
            case _:
                found[at] = raw(found[at], random)
        return separator.join(found)[:LONGEST]

    return mutate
