"""Which engine, how many ranks, on which hosts: what flags, variables, hyperparameters and SDK v3 wish."""

from __future__ import annotations

from collections.abc import Mapping

from algorun.errors import UserError

from . import hyperparameters as hp
from .entry import Entry
from .jobfiles import Resources
from .modeltrainer import ModelTrainer
from .request import ENGINES, OWN, Request
from .values import Sourced, count

# What SDK v2 sends for distribution=; smdistributed's own engine is closed, the native one takes its place.
DATA_PARALLEL, MODEL_PARALLEL = "sagemaker_distributed_dataparallel_enabled", "mp_parameters"
DISTRIBUTIONS = (
    ("sagemaker_torch_distributed_enabled", "torchrun"),
    ("sagemaker_mpi_enabled", "mpirun"),
    ("sagemaker_pytorch_ddp_enabled", "native"),
    (DATA_PARALLEL, "native"),
)


def engine(
    request: Request, environ: Mapping[str, str], raw: Mapping[str, object], trainer: ModelTrainer | None
) -> Sourced[str] | None:
    """The engine somebody wished for, or None."""
    own = f"hyperparameter {OWN}engine"
    for value, source in (
        (request.engine, "--engine"),
        (environ.get("ALGORUN_ENGINE", ""), "ALGORUN_ENGINE"),
        (hp.text(raw, f"{OWN}engine"), own),
    ):
        if value:
            if value not in ENGINES:
                raise UserError(source, f"{value!r} is no engine", allowed=", ".join(ENGINES))
            return Sourced(value, source)
    if hp.flag(raw, "sagemaker_parameter_server_enabled"):
        raise UserError(
            "hyperparameter sagemaker_parameter_server_enabled",
            "parameter servers are not offered",
            allowed="torch_distributed, pytorchddp, smdistributed or mpi",
            fix="remove parameter_server from distribution",
        )
    chosen = [(key, engine) for key, engine in DISTRIBUTIONS if hp.flag(raw, key)]
    if len({engine for _, engine in chosen}) > 1:
        raise UserError(
            "hyperparameters",
            f"{' and '.join(key for key, _ in chosen)} are {'both' if len(chosen) == 2 else 'all'} true",
            allowed="one distribution",
            fix="keep one of them in distribution=",
        )
    if chosen:
        return Sourced(chosen[0][1], f"hyperparameter {chosen[0][0]}")
    return trainer.engine if trainer else None


def compatibility(raw: Mapping[str, object], entry: Entry) -> Sourced[str] | None:
    """The libraries that the compatibility layer stands for in this job; bundled entrypoints import neither."""
    found = []
    if hp.flag(raw, DATA_PARALLEL):
        found.append((DATA_PARALLEL, "smdistributed.dataparallel"))
    if hp.decode(raw.get(MODEL_PARALLEL)):
        found.append((MODEL_PARALLEL, "smdistributed.modelparallel"))
    if not found or entry.kind == "bundled":
        return None
    return Sourced(" and ".join(name for _, name in found), f"hyperparameter {' and '.join(key for key, _ in found)}")


def slots(
    request: Request, environ: Mapping[str, str], raw: Mapping[str, object], trainer: ModelTrainer | None
) -> Sourced[int] | None:
    """The ranks per host somebody wished for, or None."""
    if request.layout is not None:
        return Sourced(request.layout[1], "-j")
    if request.slots is not None:
        return Sourced(request.slots, "--slots")
    if environ.get("ALGORUN_SLOTS"):
        return Sourced(count("ALGORUN_SLOTS", environ["ALGORUN_SLOTS"]), "ALGORUN_SLOTS")
    keys = [f"{OWN}slots"]
    if any(hp.flag(raw, key) for key, _ in DISTRIBUTIONS):  # whatever its name says: the toolkit counts so for all
        keys.append("sagemaker_mpi_num_of_processes_per_host")
    for key in keys:
        if hp.decode(raw.get(key)) is not None:
            return Sourced(count(f"hyperparameter {key}", hp.decode(raw[key])), f"hyperparameter {key}")
    return trainer.slots if trainer else None


def engine_options(raw: Mapping[str, object], trainer: ModelTrainer | None) -> tuple[str, ...]:
    """The user's own options for mpirun."""
    if trainer is not None:
        return trainer.mpi_options
    key = "sagemaker_mpi_custom_mpi_options"
    text = hp.text(raw, key)
    if not text:
        return ()
    import shlex  # few jobs need it

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"hyperparameter {key}", f"{text!r}: {error}", allowed="options of mpirun") from None


def outside(raw: Mapping[str, object], resources: Resources, engine: Sourced[str] | None) -> frozenset[str]:
    """Hosts of instance groups that the distribution does not name: they run the program alone, as under the toolkit."""
    key = "sagemaker_distribution_instance_groups"
    names = hp.decode(raw.get(key)) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"hyperparameter {key}", f"{names!r} is not a list of names", allowed='a list such as ["gpu"]')
    if not names or engine is None or not resources.groups:
        return frozenset()
    known = {group.name: group.hosts for group in resources.groups}
    strange = [str(name) for name in names if name not in known]
    if strange:
        raise UserError(
            f"hyperparameter {key}", f"there is no group {', '.join(strange)}", allowed=", ".join(sorted(known))
        )
    inside = {host for name in names for host in known[name]}
    return frozenset(resources.hosts) - inside
