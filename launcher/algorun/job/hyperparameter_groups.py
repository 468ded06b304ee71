"""hyperparameters.json in typed groups: what the platform says, what algorun is told, and the user's own.

Decoded and checked once, here; nothing behind this module reads a raw key. SageMaker SDK v3 says in files of its own
what SDK v2 says in keys `sagemaker_*`: those are in modeltrainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from algorun.errors import UserError

from . import hyperparameters as hp
from .engine import Engine
from .settings import MOST_RESTARTS
from .values import count

# What SDK v2 sends for distribution=, and the engine for it. smdistributed's own engine is closed: native takes its place.
DATA_PARALLEL = "sagemaker_distributed_dataparallel_enabled"
PARAMETER_SERVER = "sagemaker_parameter_server_enabled"
ENGINES: Mapping[str, Engine] = {
    "sagemaker_torch_distributed_enabled": Engine.TORCHRUN,
    "sagemaker_mpi_enabled": Engine.MPIRUN,
    "sagemaker_pytorch_ddp_enabled": Engine.NATIVE,
    DATA_PARALLEL: Engine.NATIVE,
}
DISTRIBUTIONS = (
    *ENGINES,
    PARAMETER_SERVER,
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
)
PROCESSES = "sagemaker_mpi_num_of_processes_per_host"
MPI_OPTIONS = "sagemaker_mpi_custom_mpi_options"
INSTANCE_GROUPS = "sagemaker_distribution_instance_groups"
MODEL_PARALLEL = "mp_parameters"  # the script gets it too
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
LOG_LEVEL = "sagemaker_container_log_level"
INFO = 20  # logging.INFO; the module costs 4 ms of every start

# algorun's own.
ENGINE, SLOTS, RESTARTS, PER_HOST = "algorun_engine", "algorun_slots", "algorun_restarts", "algorun_per_host"
ARGS, CWD = "algorun_args", "algorun_cwd"


@dataclass(frozen=True, slots=True)
class PlatformKeys:
    """The keys `sagemaker_*`, "" or None where one is absent."""

    program: str
    submit_directory: str
    region: str | None
    job_name: str
    log_level: int
    distributions: tuple[str, ...]  # the keys of DISTRIBUTIONS that say yes
    processes_per_host: int | None  # None also where no distribution counts processes
    mpi_options: tuple[str, ...]
    instance_groups: tuple[str, ...] | None  # the groups that the distribution spans
    decoded: Mapping[str, object]  # all of them, for SM_FRAMEWORK_PARAMS

    @property
    def module_dir(self) -> str | None:
        """The submit directory as SM_MODULE_DIR shows it: Python's spelling, whatever was sent."""
        return str(self.decoded[SUBMIT_DIRECTORY]) if SUBMIT_DIRECTORY in self.decoded else None


@dataclass(frozen=True, slots=True)
class OwnKeys:
    """The keys `algorun_*`; None, "" or False where one is absent."""

    engine: Engine | None
    slots: int | None
    restarts: int | None
    per_host: bool
    args: tuple[str, ...] | None
    cwd: str


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """All hyperparameters of a job, decoded. `user` holds the user's own in the order of the file."""

    platform: PlatformKeys
    own: OwnKeys
    user: Mapping[str, object]
    decoded: Mapping[str, object]

    @property
    def model_parallel(self) -> bool:
        """True where the job asks for smdistributed.modelparallel."""
        return bool(self.decoded.get(MODEL_PARALLEL))

    @classmethod
    def parse(cls, raw: Mapping[str, object]) -> Hyperparameters:
        """The groups of a raw hyperparameters.json. Raises UserError on a platform's or own key with a wrong value."""
        decoded = {key: hp.decode(value) for key, value in raw.items()}
        user = {key: value for key, value in decoded.items() if not hp.is_platform_key(key)}
        return cls(_platform(raw, decoded), _own(raw), user, decoded)


def _where(key: str) -> str:
    return f"hyperparameter {key}"


def _platform(raw: Mapping[str, object], decoded: Mapping[str, object]) -> PlatformKeys:
    distributions = tuple(key for key in DISTRIBUTIONS if hp.flag(raw, key))
    # Whatever the key's name says: the toolkit counts so for all distributions.
    counted = any(key in ENGINES for key in distributions) and decoded.get(PROCESSES) is not None
    level = decoded.get(LOG_LEVEL)
    return PlatformKeys(
        program=hp.text(raw, "sagemaker_program"),
        submit_directory=hp.text(raw, SUBMIT_DIRECTORY),
        region=hp.text(raw, "sagemaker_region") if "sagemaker_region" in raw else None,
        job_name=hp.text(raw, "sagemaker_job_name"),
        log_level=level
        if isinstance(level, int)
        else INFO,  # a number, as scripts read it; the toolkit's job ends on a word
        distributions=distributions,
        processes_per_host=count(_where(PROCESSES), decoded[PROCESSES]) if counted else None,
        mpi_options=_words(MPI_OPTIONS, hp.text(raw, MPI_OPTIONS), allowed="options of mpirun"),
        instance_groups=_names(INSTANCE_GROUPS, decoded.get(INSTANCE_GROUPS)),
        decoded={key: value for key, value in decoded.items() if key.startswith("sagemaker_")},
    )


def _own(raw: Mapping[str, object]) -> OwnKeys:
    engine, restarts, slots = hp.text(raw, ENGINE), hp.text(raw, RESTARTS), hp.decode(raw.get(SLOTS))
    return OwnKeys(
        engine=Engine.of(_where(ENGINE), engine) if engine else None,
        slots=None if slots is None else count(_where(SLOTS), slots),
        restarts=count(_where(RESTARTS), restarts, MOST_RESTARTS, least=0) if restarts else None,
        per_host=hp.flag(raw, PER_HOST),
        args=_args(hp.decode(raw.get(ARGS))),
        cwd=hp.text(raw, CWD),
    )


def _args(given: object) -> tuple[str, ...] | None:
    """algorun_args: a JSON list, or words as in a shell."""
    if given is None:
        return None
    if isinstance(given, list):
        return tuple(hp.argument(item) for item in given)
    if isinstance(given, str):
        return _words(ARGS, given, allowed="words as in a shell, or a JSON list")
    return (hp.argument(given),)


def _words(key: str, text: str, *, allowed: str) -> tuple[str, ...]:
    if not text:
        return ()
    import shlex  # few jobs need it

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(_where(key), f"{text!r}: {error}", allowed=allowed) from None


def _names(key: str, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not value:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UserError(_where(key), f"{value!r} is not a list of names", allowed='a list such as ["gpu"]')
    return tuple(value)
