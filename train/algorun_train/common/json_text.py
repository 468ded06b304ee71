"""Reads JSON of files and of users: it may be damaged, or come from anybody."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

DEEPEST = 200  # levels of nesting; whatever visits a value by recursion must stay below the interpreter's limit of 1,000 calls


def loads(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], object] | None = None) -> object:
    """The value of a JSON text. Raises ValueError if it is none, and if it is nested deeper than DEEPEST levels.

    How deep `json` itself reads depends on Python's version: up to 3.11 as deep as Python calls may be nested, later by
    another limit, so that a text may be read and end the program where it is printed. `pairs` is json's object_pairs_hook.
    """
    try:
        value: object = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None
    opening = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    level: list[object] = [value] if opening > DEEPEST else []
    for _ in range(DEEPEST):
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
            if isinstance(item, (dict, list))
        ]
        if not level:
            return value
    raise ValueError(f"nested deeper than {DEEPEST} levels")
