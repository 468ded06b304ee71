"""Reads the whole job: files, hyperparameters, environment and command line, into one frozen JobConfig."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from algorun.errors import UserError

from . import distribution, jobfiles, modeltrainer, usercode
from . import entry as entries
from . import hyperparameters as hp
from .entry import Entry
from .jobfiles import HOST_NAME_LENGTH, Resources
from .modeltrainer import ModelTrainer
from .paths import Paths
from .request import OWN, Request
from .usercode import Setup
from .values import MOST_RESTARTS, Limits, Sourced, count

CONTROL_PORT = 29600  # below the ephemeral range, away from torchrun's 29400 and 29500
RESTARTS_VARIABLE = "ALGORUN_RESTARTS"
ERROR_GATE_S = 10.0  # how long a host with a configuration error waits for the others, to tell them


@dataclass(frozen=True, slots=True)
class JobConfig:
    """What the job is, from its files, its hyperparameters, the environment and the command line.

    `setup` is what must happen before the program can start; until then `entry` is pending.
    """

    request: Request
    paths: Paths
    resources: Resources
    hyperparameters: Mapping[str, object]
    channels: Mapping[str, Mapping[str, object]]
    setup: Setup | None
    entry: Entry
    code: str  # the folder of the user's code
    engine: Sourced[str]
    engine_options: tuple[str, ...]  # the user's own for mpirun
    compatibility: Sourced[str] | None  # the closed libraries that the compatibility layer stands for
    slots: Sourced[int] | None  # None: as many as the machine offers GPUs
    per_host: bool  # one process per host, which counts hosts as its ranks
    restarts: int  # attempts that may follow a failed one
    outside: frozenset[str]  # hosts whose process stands alone, outside the world of ranks
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
    if paths.processing_resourceconfig.exists():
        return jobfiles.read_resources(paths.processing_resourceconfig)
    return jobfiles.imagined(1, f"no job description in {paths.config}")


def _program(environ: Mapping[str, str], raw: Mapping[str, object], trainer: ModelTrainer | None) -> tuple[str, str]:
    """The job's program and where it is named."""
    if environ.get("SAGEMAKER_PROGRAM"):
        return environ["SAGEMAKER_PROGRAM"], "SAGEMAKER_PROGRAM"
    named = hp.text(raw, "sagemaker_program")
    if not named and trainer is not None:
        return trainer.entry_script, "entry_script"
    return named, "hyperparameter sagemaker_program"


def _args(raw: Mapping[str, object], trainer: ModelTrainer | None) -> list[str]:
    """The program's arguments: those of algorun_args as they are, else made of the hyperparameters."""
    key = f"{OWN}args"
    given = hp.decode(raw.get(key))
    if isinstance(given, list):
        return [hp.argument(item) for item in given]
    if isinstance(given, str):
        import shlex  # few jobs need it

        try:
            return shlex.split(given)
        except ValueError as error:
            raise UserError(
                f"hyperparameter {key}", f"{given!r}: {error}", allowed="words as in a shell, or a JSON list"
            ) from None
    if given is not None:
        return [hp.argument(given)]
    if trainer is not None:
        return modeltrainer.argv(raw)
    return hp.argv(hp.user_values(raw))


def _cwd(request: Request, raw: Mapping[str, object], base: str) -> str:
    """The folder that the program starts in: --cwd or algorun_cwd, relative to `base`."""
    key = f"{OWN}cwd"
    wish = request.cwd or hp.text(raw, key)
    return os.path.normpath(os.path.join(base, wish)) if wish else base


def _restarts(request: Request, environ: Mapping[str, str], raw: Mapping[str, object]) -> int:
    """--restarts, algorun_restarts or ALGORUN_RESTARTS; none where nobody asks: a script may not be able to resume."""
    if request.restarts is not None:
        return request.restarts
    key = f"{OWN}restarts"
    for where, wish in (
        (f"hyperparameter {key}", hp.text(raw, key)),
        (RESTARTS_VARIABLE, environ.get(RESTARTS_VARIABLE, "")),
    ):
        if wish:
            return count(where, wish, MOST_RESTARTS, least=0)
    return 0


def _entry(
    request: Request,
    environ: Mapping[str, str],
    raw: Mapping[str, object],
    paths: Paths,
    trainer: ModelTrainer | None,
    *,
    prepared: bool,
) -> tuple[Entry, Setup | None]:
    """What the ranks run, and what must happen before that."""
    if not request.from_job:
        cwd = os.path.abspath(request.cwd or os.getcwd())
        return entries.of_command_line(request.target, request.args, module=request.module, cwd=cwd), None
    program, source = _program(environ, raw, trainer)
    args = [*_args(raw, trainer), *request.args]
    code = trainer.code if trainer else paths.code
    setup = None if prepared or trainer else usercode.wished(raw, environ, paths, program)
    if setup is not None:
        return entries.pending(program, source, args, str(code)), setup
    cwd = _cwd(request, raw, str(code))
    if cwd != str(code) and not os.path.isdir(cwd):
        raise UserError(f"hyperparameter {OWN}cwd", f"{cwd} is not a folder", fix="name a folder inside the code")
    return entries.of_job(program, source, args, code, cwd), None


def _is_address(text: str) -> bool:
    """True for what may be an IP address, or a name that resolves to one."""
    return text.isascii() and 0 < len(text) <= HOST_NAME_LENGTH and all(c.isalnum() or c in "-._:%" for c in text)


def _addresses(environ: Mapping[str, str]) -> dict[str, str]:
    """ALGORUN_ADDRESSES: `algo-1=127.0.0.1,algo-2=127.0.0.2`, for hosts whose names don't resolve."""
    pairs = [item.partition("=") for item in environ.get("ALGORUN_ADDRESSES", "").split(",") if item]
    if any(not name or not _is_address(address) for name, _, address in pairs):
        raise UserError("ALGORUN_ADDRESSES", environ["ALGORUN_ADDRESSES"], allowed="algo-1=10.0.0.1,algo-2=10.0.0.2")
    return {name: address for name, _, address in pairs}


def read(
    request: Request, environ: Mapping[str, str], resources: Resources | None = None, *, prepared: bool = False
) -> JobConfig:
    """Reads and checks everything. Raises UserError, once, for the first fault found.

    `prepared`: the code is here, and what it requires is installed.
    """
    paths = Paths.of(environ)
    resources = resources or read_resources(paths, request)
    if request.layout is not None and request.layout[0] != len(resources.hosts):
        raise UserError(
            "-j",
            f"asks for {request.layout[0]} hosts, but {resources.source} names {len(resources.hosts)}",
            fix=f"-j {len(resources.hosts)}x{request.layout[1]}, or algorun simulate for hosts on one machine",
        )
    raw = jobfiles.read_hyperparameters(paths.hyperparameters)
    trainer = modeltrainer.read(paths) if request.from_job else None
    engine = distribution.engine(request, environ, raw, trainer)
    slots = distribution.slots(request, environ, raw, trainer)
    entry, setup = _entry(request, environ, raw, paths, trainer, prepared=prepared)
    wished = request.per_host or hp.flag(raw, f"{OWN}per_host")
    alone = request.share_nothing or environ.get("ALGORUN_SHARE_NOTHING") == "1"
    per_host = wished or alone or (entry.kind != "bundled" and engine is None and slots is None)
    if per_host and slots is not None and slots.value != 1:
        option = "--share-nothing" if alone else "--per-host" if request.per_host else f"{OWN}per_host"
        raise UserError(option, f"contradicts {slots.value} slots from {slots.source}", fix="drop one of the two")
    if engine is None and entry.kind == "bundled" and entry.target == "mpi-basics":
        engine = Sourced("mpirun", "mpi-basics speaks MPI")
    return JobConfig(
        request=request,
        paths=paths,
        resources=resources,
        hyperparameters=raw,
        channels=jobfiles.read_channels(paths.inputdataconfig),
        setup=setup,
        entry=entry,
        code=str(trainer.code if trainer else paths.code),
        engine=Sourced("native", "--share-nothing") if alone else engine or Sourced("native", "default"),
        engine_options=distribution.engine_options(raw, trainer),
        compatibility=distribution.compatibility(raw, entry),
        slots=Sourced(1, "one process per host") if per_host else slots,
        per_host=per_host,
        restarts=_restarts(request, environ, raw),
        outside=frozenset(resources.hosts) if alone else distribution.outside(raw, resources, engine),
        limits=Limits.of(environ),
        addresses=_addresses(environ),
        control_port=count("ALGORUN_CONTROL_PORT", environ.get("ALGORUN_CONTROL_PORT", CONTROL_PORT), 65535),
        job_name=hp.text(raw, "sagemaker_job_name") or environ.get("TRAINING_JOB_NAME", ""),
        token=environ.get("ALGORUN_TOKEN") or environ.get("TRAINING_JOB_ARN", ""),
        environ=environ,
    )


def prepared(job: JobConfig) -> JobConfig:
    """The job once its code is here: now its program can be checked."""
    return read(job.request, job.environ, job.resources, prepared=True)


def broken(environ: Mapping[str, str], resources: Resources) -> JobConfig:
    """The least that is needed to tell the other hosts of a configuration error: who they are and where."""
    return JobConfig(
        request=Request(),
        paths=Paths.of(environ),
        resources=resources,
        hyperparameters={},
        channels={},
        setup=None,
        entry=Entry("command", "", (), "/", "configuration error"),
        code="/",
        engine=Sourced("native", "configuration error"),
        engine_options=(),
        compatibility=None,
        slots=Sourced(1, "configuration error"),
        per_host=True,
        restarts=0,
        outside=frozenset(),
        limits=Limits(gate_s=ERROR_GATE_S),
        addresses=_addresses(environ),
        control_port=count("ALGORUN_CONTROL_PORT", environ.get("ALGORUN_CONTROL_PORT", CONTROL_PORT), 65535),
        job_name="",
        token=environ.get("ALGORUN_TOKEN") or environ.get("TRAINING_JOB_ARN", ""),
        environ=environ,
    )
