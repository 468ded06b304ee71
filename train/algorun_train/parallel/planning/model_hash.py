"""A hash that tells models apart by the names, shapes and types of their tensors. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence


def model_hash(tensors: Iterable[tuple[str, Sequence[int], str]]) -> str:
    """sha256 in hexadecimal over (name, shape, dtype) of the tensors, in any order."""
    rows = sorted([name, [int(n) for n in shape], dtype] for name, shape, dtype in tensors)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
