"""`submit --dry-run`: the request as text or JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from algorun.common.sizes import size_text
from algorun_client.request.codec import to_json, without_secrets
from algorun_client.request.model import Json, Request

WIDEST = 100  # characters of a structure that is shown on one line


def as_json(request: Request) -> str:
    """The request on one line; `create` is what is sent, byte for byte."""
    return json.dumps(to_json(request))


def as_text(request: Request) -> str:
    """The request for people: a group for each structure of SageMaker's, then uploads, unknown fields and warnings."""
    lines = [f"{request.kind.value} job {request.job}: nothing is sent", ""]
    create = without_secrets(request.create)  # a terminal's text is copied and kept; --json has the values
    simple = {key: value for key, value in create.items() if not isinstance(value, dict | list)}
    lines += _fields(simple, "")
    for key, value in create.items():
        if key not in simple:
            lines += ["", key, *_block(value, "  ")]
    lines += ["", "uploads", *(_uploads(request) or ["  none"])]
    if request.unknown:
        lines += ["", "unknown until AWS is asked", *(f"  {path}" for path in request.unknown)]
    lines += [f"warning: {warning}" for warning in request.warnings]
    return "\n".join(lines)


def _block(value: Json, indent: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _fields(value, indent)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict) and len(_line(item)) > WIDEST:
                first, *rest = _fields(item, f"{indent}  ")
                yield from (f"{indent}- {first.lstrip()}", *rest)
            else:
                yield f"{indent}- {_line(item)}"
    else:
        yield f"{indent}{_line(value)}"


def _fields(table: Mapping[str, Json], indent: str) -> Iterator[str]:
    blocks = {key for key, value in table.items() if isinstance(value, dict | list) and len(_line(value)) > WIDEST}
    width = max((len(key) for key in table if key not in blocks), default=0)
    for key, value in table.items():
        if key in blocks:
            yield f"{indent}{key}"
            yield from _block(value, indent + "  ")
        else:
            yield f"{indent}{key.ljust(width)}  {_line(value)}"


def _line(value: Json) -> str:
    """A value on one line: a structure as NAME=VALUE, an inner one in braces."""
    if isinstance(value, dict):
        return " ".join(
            f"{key}={{{_line(item)}}}" if isinstance(item, dict) else f"{key}={_line(item)}"
            for key, item in value.items()
        )
    if isinstance(value, list):
        return json.dumps(value) if all(isinstance(item, str) for item in value) else "; ".join(map(_line, value))
    return value if isinstance(value, str) else json.dumps(value)


def _uploads(request: Request) -> list[str]:
    """One line for the code and for each local input: number of files, size, place."""
    groups: dict[str, list[int]] = {}
    for upload in request.uploads:
        folder = next((mirror for mirror in request.mirrors if upload.uri.startswith(mirror)), upload.uri)
        groups.setdefault(folder, []).append(upload.size)
    return [
        f"  {len(sizes)} file{'s'[: len(sizes) != 1]}, {size_text(sum(sizes))}  {folder}"
        for folder, sizes in groups.items()
    ]
