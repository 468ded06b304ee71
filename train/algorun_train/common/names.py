"""Names of files and classes, as people see them."""

from __future__ import annotations

import unicodedata


def same_name(name: str) -> str:
    """Equal for names that look the same: macOS may write accents as characters of their own (NFD), other systems do not."""
    return unicodedata.normalize("NFC", name)
