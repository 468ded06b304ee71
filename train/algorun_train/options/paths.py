"""Where a job reads and writes. Pure: environment and existence are passed in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .config import TrainConfig


@dataclass(frozen=True, slots=True)
class Paths:
    """Folders of one job. `train` is None when the embedded data is meant."""

    train: Path | None
    validation: Path | None
    checkpoints: Path
    model: Path
    output: Path


def base_dir(environ: Mapping[str, str], is_dir: Callable[[Path], bool]) -> Path | None:
    """SageMaker's folder (/opt/ml, or SAGEMAKER_BASE_DIR), or None where there is none."""
    base = Path(environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
    return base if is_dir(base) else None


def output_dir(environ: Mapping[str, str], is_dir: Callable[[Path], bool]) -> Path:
    """Where metrics and the summary go: SM_OUTPUT_DATA_DIR, else output/data of SageMaker's folder, else ./output."""
    if environ.get("SM_OUTPUT_DATA_DIR"):
        return Path(environ["SM_OUTPUT_DATA_DIR"])
    base = base_dir(environ, is_dir)
    return base / "output" / "data" if base else Path("output") / "data"


def resolve(config: TrainConfig, environ: Mapping[str, str], is_dir: Callable[[Path], bool]) -> Paths:
    """The folders of a job: flags win over SM_* variables, those over SageMaker's folder, that over ./output."""

    def from_environ(*names: str) -> Path | None:
        return next((Path(environ[name]) for name in names if environ.get(name)), None)

    home = base_dir(environ, is_dir) or Path("output")
    return Paths(
        train=config.train or from_environ("SM_CHANNEL_TRAIN"),
        validation=config.validation or from_environ("SM_CHANNEL_VALIDATION", "SM_CHANNEL_VAL"),
        checkpoints=config.checkpoint_dir or home / "checkpoints",
        model=config.model_dir or from_environ("SM_MODEL_DIR") or home / "model",
        output=config.output_dir or output_dir(environ, is_dir),
    )
