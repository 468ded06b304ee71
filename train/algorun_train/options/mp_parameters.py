"""AWS's names for a pipeline (`mp_parameters` of its model parallel library, documented in the SageMaker guide) as ours.

What means the same is mapped, what is the default there and here is accepted, everything else is refused by name.
"""

import contextlib
import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

from algorun_train.errors import UserError
from algorun_train.parallel.schedules import ALIASES

from .config import PipelineConfig

SCHEDULES = {"interleaved": "1f1b", "simple": "gpipe"}  # "interleaved" means backward passes first there, that is 1F1B
NEUTRAL: dict[str, tuple[Any, str]] = {
    "horovod": (False, "TensorFlow only; use ddp"),
    "tensor_parallel_degree": (1, "there is no tensor parallelism here; use more partitions"),
    "sharded_data_parallel_degree": (1, "there is no sharded data parallelism here; use more partitions"),
    "shard_optimizer_state": (False, "the optimizer's state is not sharded here; use more partitions"),
    "fp16": (False, "use bf16"),
    "offload_activations": (False, "use recompute True beside mp_parameters, or smp.set_activation_checkpointing"),
    "contiguous": (True, "stages are always contiguous"),
}
# What changes nothing here, whatever its value: it belongs to tensor parallelism, sharded data parallelism or offloading,
# each of which is refused, or asks for what is so anyway. Values still have to be of their kind.
FLAGS_WITHOUT_EFFECT = (
    "prescaled_batch",  # speaks of the ranks of a tensor parallel group, which is one rank
    "delayed_parameter_initialization",  # saves host memory; what is computed stays the same
    "deterministic_server",  # the order of a schedule is always the same on all ranks
    "sdp_hierarchical_allgather",
    "fp16_params",  # speaks of the modules that tensor parallelism distributes, and there are none
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
NAMES = {"pp": "partitions"}  # of our options in messages that can be about either
LONGEST = 200  # characters of a value in a message
WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What mp_parameters ask for: `options` of ours, and what can be checked only when the ranks are known."""

    options: dict[str, Any] = field(default_factory=dict)
    ddp: bool = True
    auto_partition: bool = True
    default_partition: int | None = None
    active_microbatches: int | None = None

    def named(self, option: str, value: Any) -> str:
        """An option of ours with its value, as whoever started the job has written it."""
        theirs = NAMES.get(option) if self.options else None
        return f"mp_parameters: {theirs} = {value}" if theirs else f"option --{option}: {value}"

    @property
    def fewer_stages(self) -> str:
        """What to ask for where a model cannot be cut into so many."""
        return "fewer partitions" if self.options else "fewer stages (a smaller --pp or --chunks)"


def _refused(key: str, value: Any, allowed: str, fix: str) -> UserError:
    return UserError(f"mp_parameters: {key} = {json.dumps(value)[:LONGEST]}; allowed: {allowed}; fix: {fix}")


def _count(given: dict[str, Any], key: str, at_least: int = 1) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)  # the SDK writes texts here and there
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise _refused(key, value, f"a whole number of at least {at_least}", "give one")
    return value


def _flag(given: dict[str, Any], key: str, default: bool) -> bool:
    value = given.get(key, default)
    if isinstance(value, str) and value.lower() in WORDS:
        return WORDS[value.lower()]
    if not isinstance(value, bool):
        raise _refused(key, value, "true or false", "give one of them")
    return value


def _number(given: dict[str, Any], key: str, most: float = math.inf, allowed: str = "a number of at least 0") -> Any:
    """A number from 0 to `most`, which may be written as text; None where there is none."""
    value = given.get(key)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise _refused(key, given[key], allowed, "give one")
    return value


def _choice(given: dict[str, Any], key: str, allowed: tuple[str, ...]) -> str | None:
    value = given.get(key)
    if value is not None and value not in allowed:
        raise _refused(key, value, ", ".join(allowed), "choose one of them")
    return value


def _placement(given: dict[str, Any]) -> str | None:
    """cluster, spread, or the axes from the slowest to the fastest: the last letter's ranks are neighbours."""
    value = given.get("placement_strategy")
    if value is None or value in PLACEMENTS:
        return value
    if isinstance(value, str) and sorted(value) == ["D", "P", "T"]:
        return "cluster" if value.index("D") < value.index("P") else "spread"
    raise _refused("placement_strategy", value, "cluster, spread, or an order of the letters D, P, T", "use cluster")


def _optimize(given: dict[str, Any]) -> str:
    """What the cuts make small. `memory_weight` says it of the cuts alone, and so goes before `optimize`.

    The library mixes the two aims; here it is one of them, the one that weighs more. Its defaults, 0.2 with "speed" and
    0.8 with "memory", come out as `optimize` does.
    """
    wished = _choice(given, "optimize", ("speed", "memory")) or "memory"
    weight = _number(given, "memory_weight", 1, "a number from 0 to 1")
    return wished if weight is None else "memory" if weight >= 0.5 else "speed"


def _given(text: str) -> dict[str, Any]:
    """A JSON object, or `key=value,key=value` with Python's words: what SageMaker's toolkit makes of an object."""
    fix = 'a JSON object such as {"partitions": 2}, or partitions=2,microbatches=4'
    if text.startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"mp_parameters: not JSON: {error}; fix: {fix}") from None
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise UserError(f"mp_parameters: {text[:LONGEST]!r}; allowed: key=value pairs or a JSON object; fix: {fix}")
    return {key.strip(): _word(value.strip()) for key, _, value in pairs}


def _word(text: str) -> Any:
    if text in ("None", ""):
        return None
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse(text: str) -> Wishes:
    """The wishes of mp_parameters. UserError for what cannot be read, and for what cannot be had."""
    given = _given(text.strip())
    known = {
        "partitions", "pipeline_parallel_degree", "microbatches", "pipeline", "optimize", "placement_strategy", "ddp",
        "auto_partition", "default_partition", "active_microbatches", "bf16", "memory_weight",
    }  # fmt: skip
    for key, value in given.items():
        if key in NEUTRAL:
            neutral, instead = NEUTRAL[key]
            if value != neutral and str(value).lower() != str(neutral).lower():
                raise _refused(key, value, json.dumps(neutral), instead)
        elif key in FLAGS_WITHOUT_EFFECT:
            _flag(given, key, default=False)
        elif key in NUMBERS_WITHOUT_EFFECT:
            _number(given, key)
        elif key not in known:
            raise _refused(key, value, ", ".join(sorted(known)), "leave it out: it has no meaning here")
    degrees = {_count(given, "partitions"), _count(given, "pipeline_parallel_degree")} - {None}
    if len(degrees) > 1:
        raise _refused("partitions", given["partitions"], str(given["pipeline_parallel_degree"]), "give one of the two")
    pipeline = _choice(given, "pipeline", tuple(SCHEDULES))
    wished = {
        "pp": next(iter(degrees), 1),
        "microbatches": _count(given, "microbatches") or 1,
        "schedule": SCHEDULES[pipeline or "interleaved"],
        "optimize": _optimize(given),
        "placement": _placement(given) or "cluster",
    }
    if _flag(given, "bf16", default=False):
        wished["precision"] = "bf16"
    auto = _flag(given, "auto_partition", default=True)
    default = _count(given, "default_partition", at_least=0)
    if not auto and default is None:
        raise _refused("auto_partition", False, "with default_partition only", "add default_partition")
    if default is not None and default >= wished["pp"]:
        raise _refused("default_partition", default, f"0 .. {wished['pp'] - 1}", "name a partition that exists")
    return Wishes(wished, _flag(given, "ddp", default=False), auto, default, _count(given, "active_microbatches"))


def apply(config: PipelineConfig) -> tuple[PipelineConfig, Wishes]:
    """The configuration with what its mp_parameters ask for. UserError where an option says something else."""
    if config.mp_parameters is None:
        return config, Wishes()
    wishes = parse(config.mp_parameters)
    changes = dict(wishes.options)
    if wishes.options["schedule"] == "1f1b" and wishes.options["microbatches"] < wishes.options["pp"]:
        changes["schedule"] = (
            "gpipe"  # with fewer microbatches than stages the two are the same, and torch's 1F1B refuses
        )
    for name, wished in wishes.options.items():
        own, default = getattr(config, name), PipelineConfig.__dataclass_fields__[name].default
        if own not in (default, wished) and (name, ALIASES.get(own)) != ("schedule", wished):
            option = "--" + name.replace("_", "-")
            raise UserError(
                f"option {option}: {own} and mp_parameters ask for different things; allowed: one of them; "
                f"fix: leave out {option}, or say the same in mp_parameters"
            )
    return replace(config, mp_parameters=None, **changes), wishes
