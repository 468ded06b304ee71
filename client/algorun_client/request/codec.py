"""A Request as JSON: for `--dry-run --json`, and for `jobs/NNNN/request.json` in the task's bucket."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from algorun.common.secret_values import hidden_json

from .model import FORMAT, Json, Kind, Request, Upload


def to_json(request: Request) -> dict[str, Json]:
    """Everything but the contents of the uploads, and where on this machine they lie."""
    address = request.address
    return {
        "format": FORMAT,
        "kind": request.kind.value,
        "bucket": address.bucket,
        "prefix": address.prefix,
        "project": address.project,
        "task": address.task,
        "number": request.number,
        "job": request.job,
        "create": dict(request.create),
        "uploads": _uploads(request.uploads),
        "mirrors": list(request.mirrors),
        "unknown": list(request.unknown),
        "warnings": list(request.warnings),
    }


def without_secrets(create: Mapping[str, Json]) -> dict[str, Json]:
    """`create` with `***` in place of its secrets: variables and hyperparameters with a secret's name, options of command lines,
    and texts that are secrets by their form."""
    shown = {key: hidden_json(value) for key, value in create.items()}
    assert isinstance(shown, dict)
    return shown  # type: ignore[return-value]


def identity(kind: Kind, create: Mapping[str, Json], uploads: Sequence[Upload]) -> str:
    """The SHA-256 of what is sent: the same request has the same one on every machine. It becomes ALGORUN_REQUEST_ID."""
    content = {"format": FORMAT, "kind": kind.value, "create": dict(create), "uploads": _uploads(uploads)}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _uploads(uploads: Sequence[Upload]) -> list[Json]:
    return [{"uri": each.uri, "size": each.size, "sha256": each.sha256} for each in uploads]
