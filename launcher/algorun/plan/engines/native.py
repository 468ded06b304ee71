"""The native engine: each host's supervisor starts its ranks itself. The engine has no process of its own."""

from __future__ import annotations

from .base import Pieces, Wanted


def pieces(wanted: Wanted) -> Pieces:
    """No processes."""
    return Pieces()
