"""Numbers of bytes, for people."""

from __future__ import annotations

UNITS = ("B", "kB", "MB", "GB", "TB")


def size_text(size: float) -> str:
    """A number of bytes: `812 B`, `1.5 kB`, `12.3 GB`, in powers of 1,000."""
    unit = 0
    while round(size, 1 if unit else 0) >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {UNITS[unit]}" if unit else f"{size:.0f} {UNITS[unit]}"
