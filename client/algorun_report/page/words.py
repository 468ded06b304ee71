"""Numbers as people read them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from algorun.common import durations

SMALLEST = 0.0001  # of an amount of money that is worth its digits


def duration(seconds: float) -> str:
    """`0.4 s`, `42 s`, `3 min 5 s` or `2 h 10 min`."""
    return f"{seconds:.1f} s" if seconds < 10 else durations.duration(round(seconds))


def moment(time: float) -> str:
    """`2026-11-23 02:18:19 UTC`. A time that no calendar has is shown as it is."""
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{time:g} s"


def money(amount: float) -> str:
    """Two decimals; of less than a hundredth two digits: `7.01`, `0.20`, `0.0019`."""
    if 0 < amount < SMALLEST:
        return f"below {SMALLEST}"
    return f"{amount:.2g}" if 0 < amount < 0.01 else f"{amount:.2f}"


def figure(value: float) -> str:
    """Six significant digits."""
    return f"{value:.6g}"
