"""HMAC-SHA256 (RFC 2104) and the comparison of two secrets, as in the standard library's hmac, for a fast start.

hmac loads OpenSSL, which takes 5 ms, and every job of several hosts waits for its start. SHA-256 is Python's own, as hashlib
falls back to it where there is no OpenSSL.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256
    from hmac import compare_digest
else:
    from _operator import _compare_digest as compare_digest  # the one of hmac

    try:
        if sys.version_info >= (3, 12):
            from _sha2 import sha256
        else:
            from _sha256 import sha256
    except ImportError:  # a Python that was built without its own
        from hashlib import sha256

BLOCK = 64  # bytes that SHA-256 takes at once
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


class Hmac:
    """HMAC-SHA256 with one key, for many texts."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        padded = (key if len(key) <= BLOCK else sha256(key).digest()).ljust(BLOCK, b"\0")
        self._inner, self._outer = sha256(padded.translate(_INNER)), sha256(padded.translate(_OUTER))

    def digest(self, text: bytes) -> bytes:
        """The MAC of a text: 32 bytes."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return outer.digest()


__all__ = ["Hmac", "compare_digest"]
