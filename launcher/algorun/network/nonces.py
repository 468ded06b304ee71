"""New nonces and challenges for the seal of a connection (control/wire/seal.py)."""

from __future__ import annotations

import os

from algorun.control.wire.seal import HEX


def fresh() -> str:
    """A nonce or challenge that nobody can foresee, and that never comes again."""
    return os.urandom(HEX // 2).hex()
