"""The folders of a job, below /opt/ml or SAGEMAKER_BASE_DIR.

Source: "How Amazon SageMaker provides training information" in AWS's developer guide.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_BASE = "/opt/ml"
RESERVED = 8192  # bytes: 1,024 characters, each of at most four bytes or six of an escape


@dataclass(frozen=True, slots=True)
class Paths:
    """All paths of one host's job folder. Nothing is created here."""

    base: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Paths:
        """The job folder that the environment names (SAGEMAKER_BASE_DIR, the toolkit's own variable)."""
        return cls(Path(environ.get("SAGEMAKER_BASE_DIR") or DEFAULT_BASE))

    @property
    def input(self) -> Path:
        return self.base / "input"

    @property
    def config(self) -> Path:
        return self.base / "input" / "config"

    @property
    def resourceconfig(self) -> Path:
        return self.config / "resourceconfig.json"

    @property
    def processing_resourceconfig(self) -> Path:
        """Where a Processing job describes its hosts; it has no hyperparameters and no channels."""
        return self.base / "config" / "resourceconfig.json"

    @property
    def exit_message(self) -> Path:
        """What a Processing job shows as its ExitMessage, as `failure` is a training job's FailureReason."""
        return self.output / "message"

    @property
    def hyperparameters(self) -> Path:
        return self.config / "hyperparameters.json"

    @property
    def inputdataconfig(self) -> Path:
        return self.config / "inputdataconfig.json"

    @property
    def code(self) -> Path:
        return self.base / "code"

    @property
    def model(self) -> Path:
        return self.base / "model"

    @property
    def checkpoints(self) -> Path:
        return self.base / "checkpoints"

    @property
    def output(self) -> Path:
        return self.base / "output"

    @property
    def output_data(self) -> Path:
        return self.output / "data"

    @property
    def output_intermediate(self) -> Path:
        return self.output / "intermediate"

    @property
    def failure(self) -> Path:
        return self.output / "failure"

    @property
    def last_words(self) -> tuple[Path, ...]:
        """What must be written even where the disk is full."""
        return (self.failure, *((self.exit_message,) if self.processing_resourceconfig.exists() else ()))

    @property
    def success(self) -> Path:
        return self.output / "success"

    @property
    def summary(self) -> Path:
        """Written by the training program when it likes: the figures of the closing line."""
        return self.output_data / "summary.json"

    @property
    def written(self) -> tuple[str, ...]:
        """The folders that a job writes to: those of results first, then checkpoints and temporary files."""
        return (*map(str, (self.model, self.output, self.checkpoints)), "/tmp")

    def channel(self, name: str) -> Path:
        return self.input / "data" / name


def write_aside(path: Path, text: str) -> None:
    """Writes a small text file whole or not at all: aside, flushed to disk, renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "w", encoding="utf-8", errors="backslashreplace") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def reserved(path: Path) -> Path:
    """The file that keeps room for another one, beside it, from the start of a run to its end."""
    return path.with_name(f".{path.name}-reserved")


def reserve(path: Path) -> None:
    """Keeps room for a small text on a disk that may fill up: bytes that are there, to be written over."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        reserved(path).write_bytes(b" " * RESERVED)


def free(path: Path) -> None:
    """Gives that room back."""
    with contextlib.suppress(OSError):
        reserved(path).unlink()


def write_reserved(path: Path, text: str) -> None:
    """As write_aside, into the room that was kept: no block and no inode has to be free."""
    try:
        fd = os.open(reserved(path), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "wb") as out:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError("not the file that was kept")
            out.write(text.encode("utf-8", "backslashreplace"))
            out.truncate()
            out.flush()
            os.fsync(fd)
        os.replace(reserved(path), path)
    except OSError:  # there is none, or its file system writes to other blocks: these are free then
        free(path)
        write_aside(path, text)
