"""hyperparameters.json in three typed groups: keys of SageMaker, keys of algorun, and the user's own.

This module decodes and checks them once; no other module reads a raw key. SageMaker SDK v3 uses files instead of keys
`sagemaker_*`; modeltrainer reads those.
"""

from __future__ import annotations

from collections.abc import Mapping

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

from . import hyperparameters as hp
from .engine import Engine
from .setting_values import MOST_RESTARTS
from .values import count, names

# The keys that SDK v2 sends for distribution=, and their engines. The launcher of smdistributed is closed software;
# native replaces it.
DATA_PARALLEL = "sagemaker_distributed_dataparallel_enabled"
PARAMETER_SERVER = "sagemaker_parameter_server_enabled"
MULTI_WORKER = "sagemaker_multi_worker_mirrored_strategy_enabled"  # TensorFlow's; no engine
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
    MULTI_WORKER,
)
PROCESSES = "sagemaker_mpi_num_of_processes_per_host"
MPI_OPTIONS = "sagemaker_mpi_custom_mpi_options"
INSTANCE_GROUPS = "sagemaker_distribution_instance_groups"
MODEL_PARALLEL = "mp_parameters"  # the script gets it too
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
LOG_LEVEL = "sagemaker_container_log_level"
INFO = 20  # logging.INFO; importing logging would cost 4 ms at every start

# algorun's own.
ENGINE, SLOTS, RESTARTS = "algorun_engine", "algorun_slots", "algorun_restarts"
PER_HOST, PER_GPU = "algorun_per_host", "algorun_per_gpu"
ARGS, ARGS_FILE, CWD, EXTRACT = "algorun_args", "algorun_args_file", "algorun_cwd", "algorun_extract"
TUNED = (
    "algorun_tuned"  # hyperparameters that SageMaker's tuner sets: their values replace {tuned:NAME} in algorun_args
)


@dataclass(frozen=True, slots=True)
class PlatformKeys:
    """The keys `sagemaker_*`, "" or None where one is absent."""

    program: str
    submit_directory: str
    region: str | None
    job_name: str
    log_level: int
    distributions: tuple[str, ...]  # the keys of DISTRIBUTIONS whose value is true
    processes_per_host: int | None  # None also if there is no distribution
    mpi_options: tuple[str, ...]
    instance_groups: tuple[str, ...] | None  # the groups whose hosts carry ranks
    decoded: Mapping[str, object]  # all keys `sagemaker_*`, for SM_FRAMEWORK_PARAMS

    @property
    def module_dir(self) -> str | None:
        """The submit directory for SM_MODULE_DIR: str() of the decoded value, as in AWS's toolkit."""
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
    args_file: str = ""  # a path inside the code folder: a JSON list of arguments
    extract: tuple[str, ...] | None = None  # channels whose archives are unpacked before the ranks start
    per_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """All hyperparameters of a job, decoded."""

    platform: PlatformKeys
    own: OwnKeys
    user: Mapping[str, object]  # the user's own, in the order of the file
    decoded: Mapping[str, object]  # all keys

    @property
    def model_parallel(self) -> bool:
        """True if the job asks for smdistributed.modelparallel."""
        return bool(self.decoded.get(MODEL_PARALLEL))

    @classmethod
    def parse(cls, raw: Mapping[str, object]) -> Hyperparameters:
        """Decodes and groups a parsed hyperparameters.json. Raises UserError if a key of SageMaker or algorun has a wrong
        value."""
        decoded = {key: hp.decode(value) for key, value in raw.items()}
        user = {key: value for key, value in decoded.items() if not hp.is_platform_key(key)}
        return cls(_platform(raw, decoded), _own(raw), user, decoded)


def _where(key: str) -> str:
    return f"hyperparameter {key}"


def _platform(raw: Mapping[str, object], decoded: Mapping[str, object]) -> PlatformKeys:
    distributions = tuple(key for key in DISTRIBUTIONS if hp.flag(raw, key))
    # The key says mpi, but AWS's toolkit uses it for every distribution.
    counted = any(key in ENGINES for key in distributions) and decoded.get(PROCESSES) is not None
    level = decoded.get(LOG_LEVEL)
    return PlatformKeys(
        program=hp.text(raw, "sagemaker_program"),
        submit_directory=hp.text(raw, SUBMIT_DIRECTORY),
        region=hp.text(raw, "sagemaker_region") if "sagemaker_region" in raw else None,
        job_name=hp.text(raw, "sagemaker_job_name"),
        log_level=level if isinstance(level, int) else INFO,  # scripts expect a number
        distributions=distributions,
        processes_per_host=count(_where(PROCESSES), decoded[PROCESSES]) if counted else None,
        mpi_options=_words(MPI_OPTIONS, hp.text(raw, MPI_OPTIONS), allowed="options of mpirun"),
        instance_groups=_names(INSTANCE_GROUPS, decoded.get(INSTANCE_GROUPS)),
        decoded={key: value for key, value in decoded.items() if key.startswith("sagemaker_")},
    )


def _own(raw: Mapping[str, object]) -> OwnKeys:
    engine, restarts, slots = hp.text(raw, ENGINE), hp.text(raw, RESTARTS), hp.decode(raw.get(SLOTS))
    args, args_file = _tuned(raw, _args(hp.decode(raw.get(ARGS)))), hp.text(raw, ARGS_FILE)
    if args is not None and args_file:
        raise UserError(_where(ARGS_FILE), f"{args_file!r} contradicts {ARGS}", fix="drop one of the two")
    extract, per_gpu = hp.decode(raw.get(EXTRACT)), hp.flag(raw, PER_GPU)
    if per_gpu and slots is not None:
        raise UserError(_where(PER_GPU), f"contradicts {SLOTS}", fix="drop one of the two")
    return OwnKeys(
        engine=Engine.of(_where(ENGINE), engine) if engine else None,
        slots=None if slots is None else count(_where(SLOTS), slots),
        restarts=count(_where(RESTARTS), restarts, MOST_RESTARTS, least=0) if restarts else None,
        per_host=hp.flag(raw, PER_HOST),
        args=args,
        args_file=args_file,
        cwd=hp.text(raw, CWD),
        extract=None if extract is None else names(_where(EXTRACT), extract),
        per_gpu=per_gpu,
    )


def _args(given: object) -> tuple[str, ...] | None:
    """The words of algorun_args: a JSON list, or a text with a shell's quoting."""
    if given is None:
        return None
    if isinstance(given, list):
        return tuple(hp.argument(item) for item in given)
    if isinstance(given, str):
        return _words(ARGS, given, allowed="words as in a shell, or a JSON list")
    return (hp.argument(given),)


def _tuned(raw: Mapping[str, object], args: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The words with the values that a tuner has chosen, as they came."""
    for name in _names(TUNED, hp.decode(raw.get(TUNED))) or ():
        if name not in raw:
            raise UserError(
                _where(TUNED), f"the job has no hyperparameter {name!r}", fix="name those of the tuner's ranges"
            )
        args = None if args is None else tuple(word.replace(f"{{tuned:{name}}}", str(raw[name])) for word in args)
    return args


def _words(key: str, text: str, *, allowed: str) -> tuple[str, ...]:
    if not text:
        return ()
    import shlex  # imported late: most jobs do not use it

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(_where(key), f"{text!r}: {error}", allowed=allowed) from None


def _names(key: str, value: object) -> tuple[str, ...] | None:
    return None if value is None else names(_where(key), value, such_as='["gpu"]')
