"""Decides how the ranks are launched: engine, ranks on each host, restarts.

A command-line option overrides a variable ALGORUN_*, which overrides a hyperparameter algorun_*, which overrides the
SDK's distribution. One exception: for restarts the hyperparameter overrides the variable.
"""

from __future__ import annotations

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

from . import hyperparameter_groups as groups
from . import settings
from .engine import Engine
from .entry import Entry
from .hyperparameter_groups import Hyperparameters
from .job_input import JobInput
from .jobfiles import Resources
from .values import Sourced


@dataclass(frozen=True, slots=True)
class Launch:
    """How the ranks of a job are started."""

    engine: Sourced[Engine]
    engine_options: tuple[str, ...]  # the user's own options for mpirun
    compatibility: Sourced[str] | None  # the closed libraries that our compatibility layer replaces
    slots: Sourced[int] | None  # ranks on each host; None: one per GPU
    per_host: bool  # one rank per host
    restarts: int  # at most this many after failures
    standalone: frozenset[str] = frozenset()  # hosts outside the world of ranks: each runs the program once
    tf_config: str = ""  # who asks for TF_CONFIG, "" for nobody
    is_default: bool = False  # one rank per host, because nobody has said how many a host gets


def decide(given: JobInput, entry: Entry) -> Launch:
    """The launch that was asked for, with defaults. Raises UserError if two inputs contradict each other."""
    engine, asked = _engine(given), _slots(given)
    alone = given.request.share_nothing or settings.SHARE_NOTHING.read(given.environ)
    one_each = given.request.per_host or given.hyperparameters.own.per_host or alone
    has_driver = engine is not None and engine.value.has_driver and not alone
    is_unsaid = not one_each and entry.kind != "bundled" and engine is None and asked is None
    if one_each and asked is not None and asked.value != 1:
        option = "--share-nothing" if alone else "--per-host" if given.request.per_host else groups.PER_HOST
        many = "one rank per GPU" if asked.value is None else f"{asked.value} slots"
        raise UserError(option, f"contradicts {many} from {asked.source}", fix="drop one of the two")
    per_host = one_each or is_unsaid
    tf_config = _tf_config(given, alone=alone)
    if engine is not None and has_driver:
        _check_driver(engine, entry, given, one_each=one_each, asked=asked)
        if tf_config:
            raise UserError(
                tf_config, f"contradicts engine {engine.value}: TensorFlow's workers are ranks", fix="drop one"
            )
    spread = engine is not None or bool(tf_config) or _speaks_mpi(entry)
    return Launch(
        engine=Sourced(Engine.NATIVE, "--share-nothing") if alone else engine or _default_engine(entry),
        engine_options=given.trainer.mpi_options if given.trainer else given.hyperparameters.platform.mpi_options,
        compatibility=_compatibility(given.hyperparameters, entry),
        slots=Sourced(1, "one rank per host") if per_host else _number(asked),
        per_host=per_host,
        is_default=is_unsaid and not tf_config,  # TensorFlow's worker takes all GPUs of its host
        restarts=_restarts(given),
        standalone=_standalone(given, spread=spread and not has_driver, alone=alone),
        tf_config=tf_config,
    )


def _check_driver(
    engine: Sourced[Engine], entry: Entry, given: JobInput, *, one_each: bool, asked: Sourced[int | None] | None
) -> None:
    """Raises UserError if the job's one driver contradicts what else was asked for."""
    if entry.kind == "bundled":
        raise UserError(
            engine.source,
            f"{engine.value} runs a program of yours as the driver of its cluster; {entry.target} runs as ranks",
            allowed=", ".join(each for each in Engine if not each.has_driver),
        )
    per_gpu = asked is not None and asked.value is None
    if one_each or per_gpu:
        option = "--per-host" if given.request.per_host else groups.PER_HOST
        option = asked.source if asked is not None and per_gpu else option
        raise UserError(
            option, f"contradicts engine {engine.value}: its driver runs once, on the leader", fix=f"drop {option}"
        )


def _speaks_mpi(entry: Entry) -> bool:
    return entry.kind == "bundled" and entry.target == "mpi-basics"


def _default_engine(entry: Entry) -> Sourced[Engine]:
    if _speaks_mpi(entry):
        return Sourced(Engine.MPIRUN, "mpi-basics speaks MPI")
    return Sourced(Engine.NATIVE, "default")


def _engine(given: JobInput) -> Sourced[Engine] | None:
    """The engine that was asked for, None without one."""
    if given.request.engine:
        return Sourced(Engine.of("--engine", given.request.engine), "--engine")
    if value := settings.ENGINE.read(given.environ):
        return Sourced(value, settings.ENGINE.name)
    if value := given.hyperparameters.own.engine:
        return Sourced(value, f"hyperparameter {groups.ENGINE}")
    chosen = _distribution(given.hyperparameters.platform.distributions)
    return chosen or (given.trainer.engine if given.trainer else None)


def _distribution(keys: tuple[str, ...]) -> Sourced[Engine] | None:
    """The engine for the SDK's distribution=. `keys`: the hyperparameters of DISTRIBUTIONS that are true."""
    if groups.PARAMETER_SERVER in keys:
        raise UserError(
            f"hyperparameter {groups.PARAMETER_SERVER}",
            "parameter servers are not supported",
            allowed="torch_distributed, pytorchddp, smdistributed, mpi or multi_worker_mirrored_strategy",
            fix="remove parameter_server from distribution",
        )
    chosen = [key for key in keys if key in groups.ENGINES]
    if len({groups.ENGINES[key] for key in chosen}) > 1:
        raise UserError(
            "hyperparameters",
            f"{' and '.join(chosen)} are {'both' if len(chosen) == 2 else 'all'} true",
            allowed="one distribution",
            fix="keep one of them in distribution=",
        )
    return Sourced(groups.ENGINES[chosen[0]], f"hyperparameter {chosen[0]}") if chosen else None


def _tf_config(given: JobInput, *, alone: bool) -> str:
    """Who asks for TF_CONFIG, "" for nobody. Raises UserError if another distribution or --share-nothing contradicts it."""
    keys, value = given.hyperparameters.platform.distributions, settings.TF_CONFIG.read(given.environ)
    if value is False or not (value or groups.MULTI_WORKER in keys):
        return ""
    source = settings.TF_CONFIG.name if value else f"hyperparameter {groups.MULTI_WORKER}"
    others = [key for key in keys if key in groups.ENGINES]
    others += [groups.MODEL_PARALLEL] if given.hyperparameters.model_parallel else []
    if others:
        raise UserError(
            source,
            f"contradicts {' and '.join(others)}",
            allowed="one distribution",
            fix=f"keep one of them; {groups.ENGINE} chooses the engine for TensorFlow's ranks",
        )
    if alone:
        raise UserError(source, "contradicts --share-nothing: there are no ranks", fix="drop one of the two")
    return source


def _slots(given: JobInput) -> Sourced[int | None] | None:
    """The ranks on each host that were asked for: a number, or None for one per GPU. None if nobody has said anything."""
    request, own, platform = given.request, given.hyperparameters.own, given.hyperparameters.platform
    if request.per_gpu:
        return Sourced(None, "--per-gpu")
    if request.layout is not None:
        return Sourced(request.layout[1], "-j")
    if request.slots is not None:
        return Sourced(request.slots, "--slots")
    if (value := settings.SLOTS.read(given.environ)) is not None:
        return Sourced(value, settings.SLOTS.name)
    if own.slots is not None:
        return Sourced(own.slots, f"hyperparameter {groups.SLOTS}")
    if own.per_gpu:
        return Sourced(None, f"hyperparameter {groups.PER_GPU}")
    if platform.processes_per_host is not None:
        return Sourced(platform.processes_per_host, f"hyperparameter {groups.PROCESSES}")
    trainer = given.trainer.slots if given.trainer else None
    return Sourced(trainer.value, trainer.source) if trainer else None


def _number(asked: Sourced[int | None] | None) -> Sourced[int] | None:
    return None if asked is None or asked.value is None else Sourced(asked.value, asked.source)


def _restarts(given: JobInput) -> int:
    """The number of restarts. The default is 0, because a script may not be able to resume."""
    if given.request.restarts is not None:
        return given.request.restarts
    if given.hyperparameters.own.restarts is not None:
        return given.hyperparameters.own.restarts
    return settings.RESTARTS.read(given.environ)


def _compatibility(hyperparameters: Hyperparameters, entry: Entry) -> Sourced[str] | None:
    """The closed libraries that the compatibility layer replaces in this job. Bundled entrypoints import none."""
    found = []
    if groups.DATA_PARALLEL in hyperparameters.platform.distributions:
        found.append((groups.DATA_PARALLEL, "smdistributed.dataparallel"))
    if hyperparameters.model_parallel:
        found.append((groups.MODEL_PARALLEL, "smdistributed.modelparallel"))
    if not found or entry.kind == "bundled":
        return None
    return Sourced(" and ".join(name for _, name in found), f"hyperparameter {' and '.join(key for key, _ in found)}")


def _standalone(given: JobInput, *, spread: bool, alone: bool) -> frozenset[str]:
    """The standalone hosts. `alone`: all hosts are. `spread`: the job has a distribution.

    If the distribution names instance groups, the hosts of all other groups run the program once each, without ranks, as
    under AWS's toolkit. Raises UserError on an unknown group.
    """
    resources: Resources = given.resources
    if alone:
        return frozenset(resources.hosts)
    names = given.hyperparameters.platform.instance_groups
    if not names or not spread or not resources.groups:
        return frozenset()
    known = {group.name: group.hosts for group in resources.groups}
    strange = [name for name in names if name not in known]
    if strange:
        raise UserError(
            f"hyperparameter {groups.INSTANCE_GROUPS}",
            f"there is no group {', '.join(strange)}",
            allowed=", ".join(sorted(known)),
        )
    return frozenset(resources.hosts) - {host for name in names for host in known[name]}
