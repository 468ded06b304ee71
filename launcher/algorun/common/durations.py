"""Times for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """`42 s`, `3 min 5 s` or `2 h 10 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
