"""The folders that a training job reads and writes. Pure: callers pass the environment and a test for folders."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from algorun_train.common.errors import UserError

from .job_options import TrainOptions

VARIABLE = "SM_CHANNEL_"  # and the channel's name in capital letters
READ = "train (or training), validation (or val) and model"
# Channels without data: the code, and what SageMaker's SDKs send along; `sagemaker_..` too.
NOT_DATA = ("model", "code", "sm_drivers", "sourcecode")


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one job. `train` is None if the job trains on the embedded data; `base_model` is the channel `model`,
    the model to start from, and `model` is where the trained one goes."""

    train: Path | None
    validation: Path | None
    checkpoints: Path
    model: Path
    output: Path
    base_model: Path | None = None
    unread: tuple[str, ...] = ()  # channels with data that nothing of this job reads


def base_folder(environ: Mapping[str, str], is_dir: Callable[[Path], bool]) -> Path | None:
    """SageMaker's folder: SAGEMAKER_BASE_DIR, else /opt/ml. None if it does not exist."""
    base = Path(environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
    return base if is_dir(base) else None


def output_folder(environ: Mapping[str, str], is_dir: Callable[[Path], bool]) -> Path:
    """The folder of metrics and summary: SM_OUTPUT_DATA_DIR, else output/data in SageMaker's folder, else ./output/data."""
    if environ.get("SM_OUTPUT_DATA_DIR"):
        return Path(environ["SM_OUTPUT_DATA_DIR"])
    base = base_folder(environ, is_dir)
    return base / "output" / "data" if base else Path("output") / "data"


def find_folders(options: TrainOptions, environ: Mapping[str, str], is_dir: Callable[[Path], bool]) -> Folders:
    """The folders of a job. For each: its option, else its SM_* variable, else SageMaker's folder, else ./output.

    Raises UserError for data in channels of other names, without training data: the job would train on the embedded data.
    """

    def from_environ(*names: str) -> Path | None:
        return next((Path(environ[name]) for name in names if environ.get(name)), None)

    home = base_folder(environ, is_dir) or Path("output")
    # `training` is the name that SageMaker's SDK gives the one channel of `fit("s3://..")`.
    train = options.train or from_environ("SM_CHANNEL_TRAIN", "SM_CHANNEL_TRAINING")
    validation = options.validation or from_environ("SM_CHANNEL_VALIDATION", "SM_CHANNEL_VAL")
    own = (train, validation, getattr(options, "model", None), getattr(options, "init_from", None))
    unread = _unread(environ, {str(each) for each in own})
    if train is None and (unknown := [name for name in unread if name not in ("val", "validation")]):
        named = " and ".join(map(repr, unknown[:3]))
        raise UserError(
            f"channel {named} is given, and no channel 'train': the job would train on its embedded data; allowed: channels {READ}; "
            "fix: name the channel train, or --train FOLDER"
        )
    return Folders(
        train=train,
        validation=validation,
        checkpoints=options.checkpoint_dir or home / "checkpoints",
        model=options.model_dir or from_environ("SM_MODEL_DIR") or home / "model",
        output=options.output_dir or output_folder(environ, is_dir),
        base_model=from_environ("SM_CHANNEL_MODEL"),
        unread=unread,
    )


def _unread(environ: Mapping[str, str], own: set[str]) -> tuple[str, ...]:
    """The channels that are none of the folders `own`, in lower case, by their names."""
    found = {
        name.removeprefix(VARIABLE).lower(): folder for name, folder in environ.items() if name.startswith(VARIABLE)
    }
    names = (name for name, folder in found.items() if folder and folder not in own and name not in NOT_DATA)
    return tuple(sorted(name for name in names if not name.startswith("sagemaker")))
