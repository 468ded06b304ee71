"""Reads the whole job: files, hyperparameters, environment and command line, into one frozen JobConfig."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from . import entry as entries
from . import hyperparameters as hp
from . import jobfiles
from .entry import Entry
from .errors import UserError
from .jobfiles import Resources
from .paths import Paths
from .values import Limits, Sourced, count

ENGINES = ("native", "torchrun", "mpirun")
CONTROL_PORT = 29600  # below the ephemeral range, away from torchrun's 29400 and 29500
ERROR_GATE_S = 10.0  # how long a host with a configuration error waits for the others, to tell them


@dataclass(frozen=True, slots=True)
class Request:
    """The command line, parsed. `layout` is -j as (hosts, slots)."""

    from_job: bool = False
    target: str = ""
    args: tuple[str, ...] = ()
    module: bool = False
    engine: str = ""
    layout: tuple[int, int] | None = None
    slots: int | None = None
    per_host: bool = False
    cwd: str = ""
    imagine_hosts: int | None = None


@dataclass(frozen=True, slots=True)
class JobConfig:
    """What the job is, from its files, its hyperparameters, the environment and the command line."""

    paths: Paths
    resources: Resources
    hyperparameters: Mapping[str, object]
    channels: Mapping[str, Mapping[str, object]]
    entry: Entry
    engine: Sourced[str]
    slots: Sourced[int] | None  # None: as many as the machine offers GPUs
    per_host: bool  # one process per host, which counts hosts as its ranks
    limits: Limits
    addresses: Mapping[str, str]  # host to IP address where names don't resolve (simulated hosts)
    control_port: int
    job_name: str
    token: str = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)

    @property
    def user_values(self) -> dict[str, object]:
        """The user's hyperparameters, decoded."""
        return hp.user_values(self.hyperparameters)


def read_resources(paths: Paths, request: Request) -> Resources:
    """The hosts of the job, or one imagined host where no platform has written a job description."""
    if request.imagine_hosts is not None:
        return jobfiles.imagined(request.imagine_hosts, "--hosts")
    described = any(path.exists() for path in (paths.resourceconfig, paths.hyperparameters, paths.inputdataconfig))
    if described:
        return jobfiles.read_resources(paths.resourceconfig)
    return jobfiles.imagined(1, f"no job description in {paths.config}")


def _engine(request: Request, environ: Mapping[str, str], raw: Mapping[str, object]) -> Sourced[str] | None:
    """The engine somebody wished for, or None."""
    for value, source in ((request.engine, "--engine"), (environ.get("ALGORUN_ENGINE", ""), "ALGORUN_ENGINE")):
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
    torch, mpi = hp.flag(raw, "sagemaker_torch_distributed_enabled"), hp.flag(raw, "sagemaker_mpi_enabled")
    if torch and mpi:
        raise UserError(
            "hyperparameters",
            "sagemaker_torch_distributed_enabled and sagemaker_mpi_enabled are both true",
            allowed="one distribution",
            fix="keep one of them in distribution=",
        )
    if torch:
        return Sourced("torchrun", "hyperparameter sagemaker_torch_distributed_enabled")
    if mpi:
        return Sourced("mpirun", "hyperparameter sagemaker_mpi_enabled")
    for key in ("sagemaker_pytorch_ddp_enabled", "sagemaker_distributed_dataparallel_enabled"):
        if hp.flag(raw, key):
            return Sourced("native", f"hyperparameter {key}")
    return None


def _slots(request: Request, environ: Mapping[str, str], raw: Mapping[str, object]) -> Sourced[int] | None:
    """The ranks per host somebody wished for, or None."""
    if request.layout is not None:
        return Sourced(request.layout[1], "-j")
    if request.slots is not None:
        return Sourced(request.slots, "--slots")
    if environ.get("ALGORUN_SLOTS"):
        return Sourced(count("ALGORUN_SLOTS", environ["ALGORUN_SLOTS"]), "ALGORUN_SLOTS")
    key = "sagemaker_mpi_num_of_processes_per_host"
    if hp.flag(raw, "sagemaker_mpi_enabled") and hp.decode(raw.get(key)) is not None:
        return Sourced(count(f"hyperparameter {key}", hp.decode(raw[key])), f"hyperparameter {key}")
    return None


def _entry(request: Request, environ: Mapping[str, str], raw: Mapping[str, object], paths: Paths) -> Entry:
    if not request.from_job:
        return entries.of_command_line(
            request.target, request.args, module=request.module, cwd=os.path.abspath(request.cwd or os.getcwd())
        )
    program, source = hp.text(raw, "sagemaker_program"), "hyperparameter sagemaker_program"
    if environ.get("SAGEMAKER_PROGRAM"):
        program, source = environ["SAGEMAKER_PROGRAM"], "SAGEMAKER_PROGRAM"
    return entries.of_job(program, source, [*hp.argv(hp.user_values(raw)), *request.args], paths.code)


def _addresses(environ: Mapping[str, str]) -> dict[str, str]:
    """ALGORUN_ADDRESSES: `algo-1=127.0.0.1,algo-2=127.0.0.2`, for hosts whose names don't resolve."""
    pairs = [item.partition("=") for item in environ.get("ALGORUN_ADDRESSES", "").split(",") if item]
    if any(not name or not address for name, _, address in pairs):
        raise UserError("ALGORUN_ADDRESSES", environ["ALGORUN_ADDRESSES"], allowed="algo-1=10.0.0.1,algo-2=10.0.0.2")
    return {name: address for name, _, address in pairs}


def read(request: Request, environ: Mapping[str, str], resources: Resources | None = None) -> JobConfig:
    """Reads and checks everything. Raises UserError, once, for the first fault found."""
    paths = Paths.of(environ)
    resources = resources or read_resources(paths, request)
    if request.layout is not None and request.layout[0] != len(resources.hosts):
        raise UserError(
            "-j",
            f"asks for {request.layout[0]} hosts, but {resources.source} names {len(resources.hosts)}",
            fix=f"-j {len(resources.hosts)}x{request.layout[1]}, or algorun simulate for hosts on one machine",
        )
    raw = jobfiles.read_hyperparameters(paths.hyperparameters)
    engine, slots = _engine(request, environ, raw), _slots(request, environ, raw)
    entry = _entry(request, environ, raw, paths)
    per_host = request.per_host or (entry.kind != "bundled" and engine is None and slots is None)
    if per_host and slots is not None and slots.value != 1:
        raise UserError("--per-host", f"contradicts {slots.value} slots from {slots.source}", fix="drop one of the two")
    if engine is None and entry.kind == "bundled" and entry.target == "mpi-basics":
        engine = Sourced("mpirun", "mpi-basics speaks MPI")
    return JobConfig(
        paths=paths,
        resources=resources,
        hyperparameters=raw,
        channels=jobfiles.read_channels(paths.inputdataconfig),
        entry=entry,
        engine=engine or Sourced("native", "default"),
        slots=Sourced(1, "one process per host") if per_host else slots,
        per_host=per_host,
        limits=Limits.of(environ),
        addresses=_addresses(environ),
        control_port=count("ALGORUN_CONTROL_PORT", environ.get("ALGORUN_CONTROL_PORT", CONTROL_PORT), 65535),
        job_name=hp.text(raw, "sagemaker_job_name") or environ.get("TRAINING_JOB_NAME", ""),
        token=environ.get("ALGORUN_TOKEN") or environ.get("TRAINING_JOB_ARN", ""),
        environ=environ,
    )


def broken(environ: Mapping[str, str], resources: Resources) -> JobConfig:
    """The least that is needed to tell the other hosts of a configuration error: who they are and where."""
    return JobConfig(
        paths=Paths.of(environ),
        resources=resources,
        hyperparameters={},
        channels={},
        entry=Entry("command", "", (), "/", "configuration error"),
        engine=Sourced("native", "configuration error"),
        slots=Sourced(1, "configuration error"),
        per_host=True,
        limits=Limits(gate_s=ERROR_GATE_S),
        addresses=_addresses(environ),
        control_port=count("ALGORUN_CONTROL_PORT", environ.get("ALGORUN_CONTROL_PORT", CONTROL_PORT), 65535),
        job_name="",
        token=environ.get("ALGORUN_TOKEN") or environ.get("TRAINING_JOB_ARN", ""),
        environ=environ,
    )
