"""Loads the standard library's pathlib without urllib.parse, for a fast start.

Up to Python 3.12 pathlib imports urllib.parse, which imports ipaddress, and needs it for `Path.as_uri` alone: 4 ms of each
start. Here `as_uri` imports urllib.parse when it is called, as it does from Python 3.13 on.
"""

from __future__ import annotations

import sys

NAME = "urllib.parse"


def load() -> None:
    """To be called before anything imports pathlib; does nothing after that, and where urllib.parse is there already."""
    if sys.version_info >= (3, 13) or "pathlib" in sys.modules or NAME in sys.modules:
        return
    stand_in = type(sys)(NAME)
    stand_in.quote_from_bytes = _quote_from_bytes  # type: ignore[attr-defined]
    sys.modules[NAME] = stand_in
    try:
        import pathlib  # noqa: F401
    finally:
        del sys.modules[NAME]


def _quote_from_bytes(path: bytes) -> str:
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(path)
