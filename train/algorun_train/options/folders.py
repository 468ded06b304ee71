"""The folders that a training job reads and writes. Pure: callers pass the environment and a test for folders."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .job_options import TrainOptions


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
    """The folders of a job. For each: its option, else its SM_* variable, else SageMaker's folder, else ./output."""

    def from_environ(*names: str) -> Path | None:
        return next((Path(environ[name]) for name in names if environ.get(name)), None)

    home = base_folder(environ, is_dir) or Path("output")
    return Folders(
        train=options.train or from_environ("SM_CHANNEL_TRAIN"),
        validation=options.validation or from_environ("SM_CHANNEL_VALIDATION", "SM_CHANNEL_VAL"),
        checkpoints=options.checkpoint_dir or home / "checkpoints",
        model=options.model_dir or from_environ("SM_MODEL_DIR") or home / "model",
        output=options.output_dir or output_folder(environ, is_dir),
        base_model=from_environ("SM_CHANNEL_MODEL"),
    )
