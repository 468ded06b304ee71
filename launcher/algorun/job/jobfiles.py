"""Reads SageMaker's JSON files. An error names the file and the place in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

from .values import HOST_NAME_LENGTH

LARGEST = 16 * 1024 * 1024  # bytes of a file; SageMaker limits all hyperparameters together to far less than 1 MiB


@dataclass(frozen=True, slots=True)
class Group:
    """One instance group."""

    name: str
    instance_type: str
    hosts: tuple[str, ...]
    raw: Mapping[str, object]  # the object in the file, unchanged


@dataclass(frozen=True, slots=True)
class Resources:
    """resourceconfig.json, checked."""

    hosts: tuple[str, ...]
    current_host: str
    interface: str
    instance_type: str
    current_group: str
    groups: tuple[Group, ...]
    source: str  # the file's name, or why there is none
    raw: Mapping[str, object]  # the object in the file, unchanged


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


OBJECT = "a JSON object, {..}"


def read_object(path: Path, *, missing_ok: bool = False) -> dict[str, object]:
    """The JSON object in a file. Raises UserError if there is none; with `missing_ok` an absent file is {}."""
    where = str(path)
    try:
        value = read_json(path, where, OBJECT)
    except FileNotFoundError:
        if missing_ok:
            return {}
        raise UserError(
            where, "the file is missing; SageMaker writes it", fix="at home use docker/compose.yaml or algorun simulate"
        ) from None
    if not isinstance(value, dict):
        raise UserError(where, f"contains a JSON {type(value).__name__}", allowed=OBJECT)
    return value


def read_json(path: Path, where: str, allowed: str) -> object:
    """The JSON value in a file. Raises UserError, in which `where` names the file, and FileNotFoundError."""
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(where, f"cannot be read: {error.strerror}", fix="make the file readable") from None
    if len(raw) > LARGEST:
        raise UserError(where, "is too large", allowed=f"up to {LARGEST} bytes")
    try:
        return loads(raw.decode("utf-8-sig"), _no_constant)  # editors of Windows write a byte order mark
    except UnicodeDecodeError as error:
        raise UserError(where, f"is not UTF-8 (byte {error.start})", fix="save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise UserError(
            where,
            f"is not JSON: line {error.lineno} column {error.colno}: {error.msg}",
            allowed=allowed,
        ) from None
    except ValueError as error:
        raise UserError(where, f"is not usable JSON: {error}", allowed=allowed) from None


def host_names(where: str, value: object) -> tuple[str, ...]:
    """A list of host names, in its order. Raises UserError if one is invalid or named twice."""
    if not isinstance(value, list) or not value:
        raise UserError(where, f"{value!r} is not a list of host names", allowed='a list such as ["algo-1", "algo-2"]')
    for name in value:
        if not isinstance(name, str) or not 0 < len(name) <= HOST_NAME_LENGTH or not name.isascii():
            raise UserError(where, f"{name!r} is not a host name", allowed="letters, digits, '-', '.' and '_'")
        if not all(char.isalnum() or char in "-._" for char in name) or name[0] in "-.":
            raise UserError(where, f"{name!r} is not a host name", allowed="letters, digits, '-', '.' and '_'")
    twice = sorted({name for name in value if value.count(name) > 1}) if len(set(value)) < len(value) else []
    if twice:
        raise UserError(where, f"{', '.join(twice)} is named more than once", fix="name each host once")
    return tuple(value)


def _text(where: str, raw: Mapping[str, object], key: str) -> str:
    value = raw.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where} {key}", f"{value!r} is not a string", allowed="a string")
    return value


def _groups(where: str, raw: Mapping[str, object], hosts: tuple[str, ...]) -> tuple[Group, ...]:
    value = raw.get("instance_groups")
    if value is None:
        return ()
    where = f"{where} instance_groups"
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(where, f"{value!r} is not a list of objects", allowed="a list of JSON objects, [{..}, ..]")
    groups = []
    for item in value:
        name = _text(where, item, "instance_group_name")
        members = host_names(f"{where} hosts of {name!r}", item.get("hosts"))
        strangers = [host for host in members if host not in hosts]
        if strangers:
            raise UserError(where, f"group {name!r} names {', '.join(strangers)}", allowed=f"hosts: {', '.join(hosts)}")
        groups.append(Group(name, _text(where, item, "instance_type"), members, item))
    return tuple(groups)


def read_resources(path: Path) -> Resources:
    """Reads resourceconfig.json. Hosts keep the order of the file, which decides the ranks: users' scripts compute theirs
    from it. Raises UserError."""
    raw = read_object(path)
    where = str(path)
    for key in ("hosts", "current_host"):
        if key not in raw:
            raise UserError(where, f"has no {key!r}", fix=f"add {key!r}")
    hosts = host_names(f"{where} hosts", raw["hosts"])
    current = raw["current_host"]
    if current not in hosts:
        raise UserError(f"{where} current_host", f"{current!r} is not in hosts", allowed=", ".join(hosts[:16]))
    return Resources(
        hosts=hosts,
        current_host=str(current),
        interface=_text(where, raw, "network_interface_name"),
        instance_type=_text(where, raw, "current_instance_type"),
        current_group=_text(where, raw, "current_group_name"),
        groups=_groups(where, raw, hosts),
        source=path.name,
        raw=raw,
    )


def imagined(nnodes: int, source: str) -> Resources:
    """Hosts algo-1 to algo-N without a file, for a single machine or a plan made offline. `source`: why."""
    hosts = tuple(f"algo-{number}" for number in range(1, nnodes + 1))
    raw = {"current_host": hosts[0], "hosts": list(hosts), "network_interface_name": ""}
    return Resources(hosts, hosts[0], "", "", "", (), source, raw)


def read_hyperparameters(path: Path) -> dict[str, object]:
    """Reads hyperparameters.json; {} without the file (Processing jobs have none). Raises UserError."""
    return read_object(path, missing_ok=True)


def read_channels(path: Path) -> dict[str, dict[str, object]]:
    """Reads inputdataconfig.json: the description of each channel by its name; {} without the file. Raises UserError."""
    raw = read_object(path, missing_ok=True)
    for name, value in raw.items():
        if not isinstance(value, dict):
            raise UserError(f"{path} {name}", f"{value!r} is not an object", allowed="a JSON object per channel")
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise UserError(str(path), f"{name!r} is not a channel name", allowed="letters, digits, '-', '.' and '_'")
    return {name: value for name, value in raw.items() if isinstance(value, dict)}
