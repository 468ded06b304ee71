"""SageMaker's own limits: every length, count, pattern and word of botocore's service model. Pure.

botocore itself checks types and required fields only, and SageMaker checks after the uploads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Protocol, TypedDict, cast

from algorun.common.errors import UserError

from .model import Json

SHOWN = 60  # characters of a value in an error
# The option that makes a field, for the first pattern that matches its path.
OPTIONS = (
    (r"(TrainingJobName|ProcessingJobName)", "--project, --task"),
    (r"HyperParameters\.(sagemaker_program)", "PROGRAM"),
    (r"HyperParameters\.(algorun_args)", "ARGS"),
    (r"HyperParameters\.(.+)", "--hyperparameter {0}"),
    (r"HyperParameters", "--hyperparameter"),
    (r".*MetricDefinitions.*", "--metric"),
    (r"AlgorithmSpecification\.TrainingImage|AppSpecification\.ImageUri", "--image"),
    (r"AppSpecification\.ContainerEntrypoint.*", "PROGRAM"),
    (r"RoleArn", "--role"),
    (r"InputDataConfig.*|ProcessingInputs.*", "--in"),
    (r"ProcessingOutputConfig.*\.KmsKeyId|.*KmsKeyId", "--kms-key"),
    (r"ProcessingOutputConfig.*", "--out"),
    (r"ResourceConfig\.InstanceGroups.*", "--instance-group"),
    (r".*\.InstanceType", "--instance"),
    (r".*\.InstanceCount", "--hosts"),
    (r".*\.VolumeSizeInGB", "--volume"),
    (r".*\.KeepAlivePeriodInSeconds", "--keep-alive"),
    (r"StoppingCondition\.MaxRuntimeInSeconds", "--max-run"),
    (r"RetryStrategy\..*", "--retries"),
    (r"StoppingCondition\.MaxWaitTimeInSeconds", "--max-wait"),
    (r".*\.Subnets.*", "--subnets"),
    (r".*\.SecurityGroupIds.*", "--security-groups"),
    (r"Tags.*", "--tag"),
    (r"Environment\.(.+)", "--env {0}"),
    (r"Environment", "--env"),
    (r"(OutputDataConfig|CheckpointConfig).*", "--bucket, --prefix"),
)
# Java's names for classes of characters inside [..], as Python writes them.
JAVA_CLASSES = {
    r"\p{Alnum}": "a-zA-Z0-9",
    r"\p{L}": r"\w",
    r"\p{N}": "",
    r"\p{Z}": " \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
}


class ValueLimits(TypedDict, total=False):
    """What botocore's model says of a value beside its type."""

    min: int
    max: int
    pattern: str
    enum: list[str]


class Shape(Protocol):
    """botocore's shape of a value; botocore itself has no types."""

    @property
    def type_name(self) -> str: ...
    @property
    def metadata(self) -> ValueLimits: ...


class Structure(Shape, Protocol):
    @property
    def members(self) -> Mapping[str, Shape]: ...
    @property
    def required_members(self) -> Sequence[str]: ...


class ListShape(Shape, Protocol):
    @property
    def member(self) -> Shape: ...


class MapShape(Shape, Protocol):
    @property
    def key(self) -> Shape: ...
    @property
    def value(self) -> Shape: ...


@dataclass(frozen=True, slots=True)
class Broken:
    """A limit that a value breaks."""

    path: str  # such as `Tags[3].Value`; a map's keys as `Environment.NAME`
    what: str
    allowed: str
    fix: str = ""


def check(shape: Shape, arguments: Mapping[str, Json], unknown: Collection[str] = ()) -> None:
    """Raises UserError for the first limit that the arguments break.

    `shape`: botocore's input shape of the operation. `unknown`: paths of fields that hold a placeholder.
    """
    for broken in violations(shape, dict(arguments)):
        if broken.path not in unknown:
            raise UserError(option(broken.path), broken.what, allowed=broken.allowed, fix=broken.fix)


def option(path: str) -> str:
    """The option that makes a field; the field itself if there is none."""
    for pattern, name in OPTIONS:
        if found := re.fullmatch(pattern, path):
            return name.format(*found.groups())
    return path


def violations(shape: Shape, value: Json, path: str = "") -> Iterator[Broken]:
    """Every limit that a value breaks."""
    match shape.type_name:
        case "structure":
            yield from _structure(cast("Structure", shape), value, path)
        case "list":
            yield from _list(cast("ListShape", shape), value, path)
        case "map":
            yield from _map(cast("MapShape", shape), value, path)
        case "string":
            yield from _string(shape, value, path)
        case "integer" | "long":
            yield from _number(shape, value, path)
        case "boolean":
            if not isinstance(value, bool):
                yield Broken(path, f"{value!r} is not a boolean", "true or false")


def _structure(shape: Structure, value: Json, path: str) -> Iterator[Broken]:
    if not isinstance(value, dict):
        yield Broken(path, f"{value!r} is not a structure", "a structure")
        return
    for name in shape.required_members:
        if name not in value:
            yield Broken(_below(path, name), "is missing", "a value")
    for name, item in value.items():
        if name in shape.members:
            yield from violations(shape.members[name], item, _below(path, name))
        else:
            yield Broken(
                _below(path, name),
                "this version of boto3 does not know the field",
                ", ".join(shape.members),
                "pip install -U boto3",
            )


def _list(shape: ListShape, value: Json, path: str) -> Iterator[Broken]:
    if not isinstance(value, list):
        yield Broken(path, f"{value!r} is not a list", "a list")
        return
    yield from _size(shape, len(value), path, "entries")
    for index, item in enumerate(value):
        yield from violations(shape.member, item, f"{path}[{index}]")


def _map(shape: MapShape, value: Json, path: str) -> Iterator[Broken]:
    if not isinstance(value, dict):
        yield Broken(path, f"{value!r} is not a map", "a map")
        return
    yield from _size(shape, len(value), path, "entries")
    for name, item in value.items():
        for broken in _string(shape.key, name, _below(path, name)):
            yield Broken(broken.path, f"the name {broken.what}", broken.allowed, broken.fix)
        yield from violations(shape.value, item, _below(path, name))


def _string(shape: Shape, value: Json, path: str) -> Iterator[Broken]:
    if not isinstance(value, str):
        yield Broken(path, f"{value!r} is not a text", "a text")
        return
    yield from _size(shape, len(value), path, "characters")
    words = shape.metadata.get("enum")
    if words and value not in words:
        near = get_close_matches(value, words, n=3)
        fix = f"did you mean {near[0]}?" if near else "if AWS has it since a short time: pip install -U boto3"
        yield Broken(path, f"{value!r} is unknown", ", ".join(near or words[:5]) + ", ..", fix)
    pattern = shape.metadata.get("pattern")
    if pattern and (compiled := _compiled(pattern)) and compiled.fullmatch(value) is None:
        yield Broken(path, f"{_short(value)} has characters that SageMaker refuses", f"the pattern {pattern}")


def _number(shape: Shape, value: Json, path: str) -> Iterator[Broken]:
    if isinstance(value, bool) or not isinstance(value, int):
        yield Broken(path, f"{value!r} is not a whole number", "a whole number")
        return
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if (least is not None and value < least) or (most is not None and value > most):
        yield Broken(path, f"{value} is out of range", _range(least, most))


def _size(shape: Shape, size: int, path: str, unit: str) -> Iterator[Broken]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if (least is not None and size < least) or (most is not None and size > most):
        fix = f"{size - most} too many" if most is not None and size > most else ""
        yield Broken(path, f"has {size} {unit}", f"{_range(least, most)} {unit}", fix)


def _range(least: int | None, most: int | None) -> str:
    if not least:
        return f"up to {most}"
    return f"{least} or more" if most is None else f"{least} to {most}"


def _short(value: str) -> str:
    return repr(value if len(value) <= SHOWN else f"{value[:SHOWN]}..")


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """AWS's pattern for Python; None if Python cannot express it. SageMaker then checks it alone."""
    for java, python in JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    try:
        return re.compile(pattern)
    except re.error:
        return None
