"""AWS's options of a pipeline, translated: `mp_parameters` of its model parallel library, as the SageMaker guide lists them.

A parameter that has a counterpart here is translated. A parameter that asks for the default of both is accepted. Every
other parameter is refused by name.
"""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from algorun_train.errors import UserError
from algorun_train.parallel.schedules import ALIASES

from .job_options import PipelineJobOptions

Given = Mapping[str, object]  # what the job wrote: JSON values by parameter name, not checked yet

SCHEDULES = {"interleaved": "1f1b", "simple": "gpipe"}  # AWS's "interleaved" puts backward passes first: 1F1B here
# Parameters with one accepted value, and what to use instead of any other value.
ONLY_DEFAULT: dict[str, tuple[bool | int, str]] = {
    "horovod": (False, "TensorFlow only; use ddp"),
    "tensor_parallel_degree": (1, "there is no tensor parallelism here; use more partitions"),
    "sharded_data_parallel_degree": (1, "there is no sharded data parallelism here; use more partitions"),
    "shard_optimizer_state": (False, "the optimizer's state is not sharded here; use more partitions"),
    "fp16": (False, "use bf16"),
    "offload_activations": (False, "use recompute True beside mp_parameters, or smp.set_activation_checkpointing"),
    "contiguous": (True, "stages are always contiguous"),
}
# Parameters that change nothing here, whatever their value: they belong to tensor parallelism, sharded data parallelism
# or offloading, each of which is refused, or they ask for what is always so. Values must still have the right type.
FLAGS_WITHOUT_EFFECT = (
    "prescaled_batch",  # is about the ranks of a tensor parallel group, and such a group is one rank here
    "delayed_parameter_initialization",  # saves host memory; the computation stays the same
    "deterministic_server",  # the order of a schedule is always the same on all ranks
    "sdp_hierarchical_allgather",
    "fp16_params",  # is about the modules that tensor parallelism distributes, and there are none
    "skip_tracing",  # models are cut without a tracer
)
NUMBERS_WITHOUT_EFFECT = (
    "activation_loading_horizon",
    "sdp_reduce_bucket_size",
    "sdp_param_persistence_threshold",
    "sdp_max_live_parameters",
    "sdp_gradient_clipping",
)
PLACEMENTS = ("cluster", "spread")
TRANSLATED = (
    "partitions", "pipeline_parallel_degree", "microbatches", "pipeline", "optimize", "placement_strategy", "ddp",
    "auto_partition", "default_partition", "active_microbatches", "bf16", "memory_weight",
)  # fmt: skip
AWS_NAMES = {"pp": "partitions"}  # of our options, in messages that can be about either
LONGEST = 200  # characters of a value in a message
BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class MpParameters:
    """What mp_parameters ask for. Without arguments: a job without mp_parameters.

    `options` are options of PipelineJobOptions by name. The other fields can only be checked once the number of ranks
    or the model is known: `ddp` (several pipelines side by side are allowed), `auto_partition` (no partition file is
    needed), `default_partition` (the stage of units that the partition file does not name), and
    `active_microbatches` (the largest number of microbatches in flight on a rank).
    """

    options: dict[str, str | int] = field(default_factory=dict)
    ddp: bool = True
    auto_partition: bool = True
    default_partition: int | None = None
    active_microbatches: int | None = None

    def named(self, option: str, value: object) -> str:
        """An option with its value, under the name that the job used: ours, or AWS's."""
        aws_name = AWS_NAMES.get(option) if self.options else None
        return f"mp_parameters: {aws_name} = {value}" if aws_name else f"option --{option}: {value}"

    @property
    def fewer_stages(self) -> str:
        """The fix to name in an error when a model cannot be cut into so many stages."""
        return "fewer partitions" if self.options else "fewer stages (a smaller --pp or --chunks)"


def _refused(key: str, value: object, allowed: str, fix: str) -> UserError:
    return UserError(f"mp_parameters: {key} = {json.dumps(value)[:LONGEST]}; allowed: {allowed}; fix: {fix}")


def _count(given: Given, key: str, at_least: int = 1) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)  # the SageMaker SDK writes some numbers as text
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise _refused(key, value, f"a whole number of at least {at_least}", "give one")
    return value


def _flag(given: Given, key: str, default: bool) -> bool:
    value = given.get(key, default)
    if isinstance(value, str) and value.lower() in BOOLEANS:
        return BOOLEANS[value.lower()]
    if not isinstance(value, bool):
        raise _refused(key, value, "true or false", "give one of them")
    return value


def _number(
    given: Given, key: str, most: float = math.inf, allowed: str = "a number of at least 0"
) -> int | float | None:
    """A number from 0 to `most`, which may be written as text; None if it is not given."""
    value = given.get(key)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise _refused(key, given[key], allowed, "give one")
    return value


def _choice(given: Given, key: str, allowed: tuple[str, ...]) -> str | None:
    value = given.get(key)
    if value is not None and (not isinstance(value, str) or value not in allowed):
        raise _refused(key, value, ", ".join(allowed), "choose one of them")
    return value


def _placement(given: Given) -> str | None:
    """cluster, spread, or the letters of the axes from slowest to fastest: ranks of the last one are neighbours."""
    value = given.get("placement_strategy")
    if value is None:
        return None
    if isinstance(value, str):
        if value in PLACEMENTS:
            return value
        if sorted(value) == ["D", "P", "T"]:
            return "cluster" if value.index("D") < value.index("P") else "spread"
    raise _refused("placement_strategy", value, "cluster, spread, or an order of the letters D, P, T", "use cluster")


def _optimize(given: Given) -> str:
    """What the partition minimises. `memory_weight` is only about the partition, so it wins over `optimize`.

    AWS's library mixes speed and memory; here the partition minimises the one that weighs more. AWS's default weights,
    0.2 with "speed" and 0.8 with "memory", give the same result as `optimize` alone.
    """
    wanted = _choice(given, "optimize", ("speed", "memory")) or "memory"
    weight = _number(given, "memory_weight", 1, "a number from 0 to 1")
    return wanted if weight is None else "memory" if weight >= 0.5 else "speed"


def _read_text(text: str) -> Given:
    """A JSON object, or `key=value,key=value` in Python's notation: SageMaker's toolkit turns an object into that."""
    fix = 'a JSON object such as {"partitions": 2}, or partitions=2,microbatches=4'
    if text.startswith("{"):
        try:
            given: dict[str, object] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"mp_parameters: not JSON: {error}; fix: {fix}") from None
        return given
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise UserError(f"mp_parameters: {text[:LONGEST]!r}; allowed: key=value pairs or a JSON object; fix: {fix}")
    return {key.strip(): _read_value(value.strip()) for key, _, value in pairs}


def _read_value(text: str) -> object:
    if text in ("None", ""):
        return None
    if text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _check_names(given: Given) -> None:
    """UserError for an unknown parameter, and for a value that cannot be had here."""
    for key, value in given.items():
        if key in ONLY_DEFAULT:
            default, instead = ONLY_DEFAULT[key]
            if value != default and str(value).lower() != str(default).lower():
                raise _refused(key, value, json.dumps(default), instead)
        elif key in FLAGS_WITHOUT_EFFECT:
            _flag(given, key, default=False)
        elif key in NUMBERS_WITHOUT_EFFECT:
            _number(given, key)
        elif key not in TRANSLATED:
            raise _refused(key, value, ", ".join(sorted(TRANSLATED)), "leave it out: it has no meaning here")


def parse(text: str) -> MpParameters:
    """Reads mp_parameters: a JSON object, or key=value pairs. Raises UserError for a text that cannot be read, and for a
    parameter that is unknown or cannot be had here."""
    given = _read_text(text.strip())
    _check_names(given)
    degrees = {_count(given, "partitions"), _count(given, "pipeline_parallel_degree")} - {None}
    if len(degrees) > 1:
        raise _refused("partitions", given["partitions"], str(given["pipeline_parallel_degree"]), "give one of the two")
    degree = degrees.pop() if degrees else None
    pipeline = _choice(given, "pipeline", tuple(SCHEDULES))
    options: dict[str, str | int] = {
        "pp": degree or 1,
        "microbatches": _count(given, "microbatches") or 1,
        "schedule": SCHEDULES[pipeline or "interleaved"],
        "optimize": _optimize(given),
        "placement": _placement(given) or "cluster",
    }
    if _flag(given, "bf16", default=False):
        options["precision"] = "bf16"
    auto = _flag(given, "auto_partition", default=True)
    default = _count(given, "default_partition", at_least=0)
    if not auto and default is None:
        raise _refused("auto_partition", False, "with default_partition only", "add default_partition")
    if default is not None and default >= (degree or 1):
        raise _refused("default_partition", default, f"0 .. {(degree or 1) - 1}", "name a partition that exists")
    return MpParameters(
        options, _flag(given, "ddp", default=False), auto, default, _count(given, "active_microbatches")
    )


def apply(options: PipelineJobOptions) -> tuple[PipelineJobOptions, MpParameters]:
    """The options of a job with those that its mp_parameters ask for.

    Raises UserError if an option and mp_parameters ask for different things.
    """
    if options.mp_parameters is None:
        return options, MpParameters()
    asked = parse(options.mp_parameters)
    for name, wanted in asked.options.items():
        own, default = getattr(options, name), PipelineJobOptions.__dataclass_fields__[name].default
        if own not in (default, wanted) and (name, ALIASES.get(own)) != ("schedule", wanted):
            option = "--" + name.replace("_", "-")
            raise UserError(
                f"option {option}: {own} and mp_parameters ask for different things; allowed: one of them; "
                f"fix: leave out {option}, or say the same in mp_parameters"
            )
    return replace(options, mp_parameters=None, **_runnable(asked.options)), asked


def _runnable(options: dict[str, str | int]) -> dict[str, Any]:  # Any: `replace` takes every field's own type
    """The options with a schedule that torch accepts: with fewer microbatches than stages 1F1B and GPipe run the same
    order, and torch's 1F1B refuses."""
    few = int(options["microbatches"]) < int(options["pp"])
    return options | {"schedule": "gpipe"} if few and options["schedule"] == "1f1b" else options
