"""Command lines that a user is to copy. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from algorun.common.plain_text import plain
from algorun.common.secret_names import without_secrets
from algorun.common.secret_values import hidden


def line(words: Sequence[str]) -> str:
    """A command line to copy. Where it holds secrets, which reach no log, only its begin: `***` must not be sent."""
    shown = [hidden(word) for word in without_secrets(words)]
    return plain(f"algorun {shlex.join(words)}" if shown == list(words) else f"algorun {shlex.join(words[:2])} ..")
