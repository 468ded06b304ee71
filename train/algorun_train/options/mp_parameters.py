"""AWS's options of a pipeline, translated: `mp_parameters` of its model parallel library, as the SageMaker guide lists them.

A parameter with a counterpart here is translated. A parameter whose value is the default of both is accepted. Every other
parameter is refused by name.
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any

from algorun_train.common.errors import UserError
from algorun_train.common.json_text import loads
from algorun_train.parallel.schedules import ALIASES

from .job_options import PipelineJobOptions
from .mp_parameter_names import (
    FLAGS_WITHOUT_EFFECT,
    NUMBERS_WITHOUT_EFFECT,
    ONLY_DEFAULT,
    PLACEMENTS,
    SCHEDULES,
    TRANSLATED,
)
from .mp_sharding import DEFAULT_CLIP, DEGREE, NO_SHARDING, STATE, Sharding, read_sharding
from .mp_values import BOOLEANS, LONGEST, Given, choice, count, flag, number, refused, value_or

DEGREES = {"partitions", "pipeline_parallel_degree"}
WEIGHTS = {"speed": 0.2, "memory": 0.8}  # AWS's default of memory_weight, by `optimize`
AWS_NAMES = {"pp": "partitions"}  # of our options, in messages that can be about either


@dataclass(frozen=True, slots=True)
class MpParameters:
    """What mp_parameters ask for. Without arguments: a job without mp_parameters.

    `options` are options of PipelineJobOptions by name, `given` are all parameters as the job wrote them. The other
    fields can only be checked once the number of ranks or the model is known: `sharding`, `ddp` (several pipelines side by side are
    allowed), `auto_partition` (no partition file is needed), `default_partition` (the stage of units that the partition
    file does not name), and `active_microbatches` (the largest number of microbatches in flight on a rank).
    """

    options: dict[str, str | int] = field(default_factory=dict)
    ddp: bool = True
    auto_partition: bool = True
    default_partition: int | None = None
    active_microbatches: int | None = None
    given: Given = field(default_factory=dict, compare=False)
    sharding: Sharding = NO_SHARDING

    def value(self, key: str) -> object:
        """A parameter as AWS's library holds it: what the job gave, else the default. KeyError for an unknown one."""
        if key in ONLY_DEFAULT:
            return ONLY_DEFAULT[key][0]  # anything else is refused
        if key in FLAGS_WITHOUT_EFFECT:
            return flag(self.given, key, FLAGS_WITHOUT_EFFECT[key])
        if key in NUMBERS_WITHOUT_EFFECT:
            return value_or(number(self.given, key), NUMBERS_WITHOUT_EFFECT[key])
        if key not in TRANSLATED:
            raise KeyError(key)
        partitions, optimize = int(self.options.get("pp", 1)), str(self.given.get("optimize") or "memory")
        known = {
            "partitions": partitions,
            "pipeline_parallel_degree": partitions,
            "microbatches": self.options.get("microbatches", 1),
            "pipeline": self.given.get("pipeline") or "interleaved",
            "optimize": optimize,
            "placement_strategy": self.given.get("placement_strategy") or "cluster",
            "ddp": self.ddp,
            "auto_partition": self.auto_partition,
            "default_partition": value_or(self.default_partition, 0),
            "active_microbatches": value_or(self.active_microbatches, partitions + 2),
            "bf16": self.options.get("precision") == "bf16",
            "fp16": flag(self.given, "fp16", default=False),
            "sharded_data_parallel_degree": value_or(count(self.given, "sharded_data_parallel_degree"), 1),
            "shard_optimizer_state": flag(self.given, "shard_optimizer_state", default=False),
            "sdp_gradient_clipping": value_or(number(self.given, "sdp_gradient_clipping"), DEFAULT_CLIP),
            "memory_weight": value_or(number(self.given, "memory_weight", 1), WEIGHTS[optimize]),
        }
        return known[key]

    def named(self, option: str, value: object) -> str:
        """An option with its value, under the name that the job used: ours, or AWS's."""
        aws_name = AWS_NAMES.get(option) if self.options else None
        return f"mp_parameters: {aws_name} = {value}" if aws_name else f"option --{option}: {value}"

    @property
    def fewer_stages(self) -> str:
        """The fix in an error about a model that has fewer places to cut than stages need."""
        return "fewer partitions" if self.options else "fewer stages (a smaller --pp or --chunks)"


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
    raise refused("placement_strategy", value, "cluster, spread, or an order of the letters D, P, T", "use cluster")


def _optimize(given: Given) -> str:
    """What the partition minimises. `memory_weight` is only about the partition, so it wins over `optimize`.

    AWS's library mixes speed and memory; here the partition minimises the one that weighs more. AWS's default weights,
    0.2 with "speed" and 0.8 with "memory", give the same result as `optimize` alone.
    """
    wanted = choice(given, "optimize", ("speed", "memory")) or "memory"
    weight = number(given, "memory_weight", 1, "a number from 0 to 1")
    return wanted if weight is None else "memory" if weight >= 0.5 else "speed"


def _read_text(text: str) -> Given:
    """A JSON object, or `key=value,key=value` in Python's notation: SageMaker's toolkit turns an object into that."""
    fix = 'a JSON object such as {"partitions": 2}, or partitions=2,microbatches=4'
    if text.startswith("{"):
        try:
            given = loads(text, _once)
        except ValueError as error:
            raise UserError(f"mp_parameters: not JSON: {error}; fix: {fix}") from None
        assert isinstance(given, dict)  # it begins with a brace
        return given
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise UserError(f"mp_parameters: {text[:LONGEST]!r}; allowed: key=value pairs or a JSON object; fix: {fix}")
    return _once([(key.strip(), _read_value(value.strip())) for key, _, value in pairs])


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The parameters by name. Raises UserError for one that is given twice with different values."""
    given: dict[str, object] = {}
    for key, value in pairs:
        if key in given and given[key] != value:
            both = f"{json.dumps(given[key])[:LONGEST]} and {json.dumps(value)[:LONGEST]}"
            raise UserError(f"mp_parameters: {key} is given twice, with {both}; allowed: once; fix: keep one of them")
        given[key] = value
    return given


def _read_value(text: str) -> object:
    if text in ("None", ""):
        return None
    if text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    try:
        return loads(text)
    except ValueError:
        return text


def _check_names(given: Given) -> None:
    """Raises UserError for an unknown parameter, and for a value that is not supported."""
    for key, value in given.items():
        if key in ONLY_DEFAULT:
            default, instead = ONLY_DEFAULT[key]
            if value != default and str(value).lower() != str(default).lower():
                raise refused(key, value, json.dumps(default), instead)
        elif key in FLAGS_WITHOUT_EFFECT:
            flag(given, key, default=False)
        elif key in NUMBERS_WITHOUT_EFFECT:
            number(given, key)
        elif key not in TRANSLATED:
            raise refused(key, value, ", ".join(sorted(TRANSLATED)), "leave it out: it has no meaning here")


def parse(text: str) -> MpParameters:
    """Reads mp_parameters: a JSON object, or key=value pairs. Raises UserError for a text that cannot be read, for an unknown
    parameter, and for a value that is not supported."""
    given = _read_text(text.strip())
    _check_names(given)
    degrees = {count(given, name) for name in DEGREES} - {None}
    if len(degrees) > 1:
        raise refused("partitions", given["partitions"], str(given["pipeline_parallel_degree"]), "give one of the two")
    degree = degrees.pop() if degrees else None
    pipeline = choice(given, "pipeline", tuple(SCHEDULES))
    options: dict[str, str | int] = {
        "pp": degree or 1,
        "microbatches": count(given, "microbatches") or 1,
        "schedule": SCHEDULES[pipeline or "interleaved"],
        "optimize": _optimize(given),
        "placement": _placement(given) or "cluster",
    }
    if flag(given, "bf16", default=False):
        options["precision"] = "bf16"
    auto = flag(given, "auto_partition", default=True)
    default = count(given, "default_partition", at_least=0)
    if not auto and default is None:
        raise refused("auto_partition", False, "with default_partition only", "add default_partition")
    if default is not None and default >= (degree or 1):
        raise refused("default_partition", default, f"0 .. {(degree or 1) - 1}", "name a partition that exists")
    return MpParameters(
        options,
        flag(given, "ddp", default=False),
        auto,
        default,
        count(given, "active_microbatches"),
        given,
        read_sharding(given, degree or 1),
    )


def merged(script: Given, job: str) -> str:
    """The parameters of a script's own smp.init(..) with those of its job, which win; as a text for `parse`.

    A parameter of the script goes as well if the job gives another that it would override, or that leaves it no meaning.
    Raises UserError for a text of the job that cannot be read.
    """
    theirs = _read_text(job.strip()) if job.strip() else {}
    replaced = DEGREES if DEGREES & theirs.keys() else set()  # two names of one parameter
    if "optimize" in theirs:
        replaced = replaced | {"memory_weight"}
    if "auto_partition" in theirs and flag(theirs, "auto_partition", default=True):
        replaced = replaced | {"default_partition"}
    kept = {key: value for key, value in script.items() if key not in replaced}
    return json.dumps({**kept, **theirs}, default=repr)


def apply(options: PipelineJobOptions, shards: bool = False) -> tuple[PipelineJobOptions, MpParameters]:
    """The options of a job after its mp_parameters are applied, and the mp_parameters.

    Raises UserError if an option and mp_parameters ask for different things, and for sharding unless the job `shards`.
    """
    if options.mp_parameters is None:
        return options, MpParameters()
    asked = parse(options.mp_parameters)
    if asked.sharding != NO_SHARDING and not shards:
        key, neutral = (DEGREE, 1) if asked.sharding.degree else (STATE, False)
        fix = "a script with smdistributed.modelparallel, or entrypoint ddp with --shard"
        raise refused(key, asked.value(key), f"{json.dumps(neutral)} in entrypoint pipeline", fix)
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
    """The options with a schedule that torch accepts. With fewer microbatches than stages torch refuses 1F1B; GPipe then
    has the same order."""
    few = int(options["microbatches"]) < int(options["pp"])
    return options | {"schedule": "gpipe"} if few and options["schedule"] == "1f1b" else options
