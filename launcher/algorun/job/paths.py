"""The folders of a job, below /opt/ml or SAGEMAKER_BASE_DIR.

Source: "How Amazon SageMaker provides training information" in AWS's developer guide.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from algorun.common.aside import aside
from algorun.common.fast_dataclasses import dataclass

DEFAULT_BASE = "/opt/ml"
RESERVED = 8192  # bytes: 1,024 characters, each of at most four bytes or six of an escape


@dataclass(frozen=True, slots=True)
class Paths:
    """All paths of one host's job folder. Creates none of them."""

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
        """The hosts of a Processing job, which has no hyperparameters and no channels."""
        return self.base / "config" / "resourceconfig.json"

    @property
    def processing_config(self) -> Path:
        """The description of a Processing job, with its inputs."""
        return self.base / "config" / "processingjobconfig.json"

    @property
    def processing(self) -> Path:
        """The folder of a Processing job's inputs and outputs."""
        return self.base / "processing"

    @property
    def exit_message(self) -> Path:
        """The file whose text a Processing job shows as ExitMessage; a training job shows `failure` as FailureReason."""
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
        """The files that must be written even if the disk is full."""
        return (self.failure, *((self.exit_message,) if self.processing_resourceconfig.exists() else ()))

    @property
    def success(self) -> Path:
        return self.output / "success"

    @property
    def summary(self) -> Path:
        """The figures of the closing line. The training program may write this file."""
        return self.output_data / "summary.json"

    def step_trace(self, host: str, attempt: str) -> Path:
        """A host's part of the trace of steps in an attempt (from 1; "*" in a pattern for all)."""
        return self.output_data / f"trace_steps-attempt-{attempt}-{host}.json"

    def host_figures(self, host: str) -> Path:
        """How busy this host was (docs/time.md). SageMaker puts the files of all hosts into one folder, hence its name."""
        return self.output_data / f"host_figures-{host}.jsonl"

    @property
    def held(self) -> Path:
        """Names the process that stands for a rank while this host is held after a failure."""
        return self.base / "algorun-held.json"

    @property
    def written(self) -> tuple[str, ...]:
        """The folders that a job writes to: results, checkpoints, temporary files."""
        return (*map(str, (self.model, self.output, self.checkpoints)), "/tmp")

    def channel(self, name: str) -> Path:
        return self.input / "data" / name


def write_aside(path: Path, text: str, *, flush: bool = True) -> None:
    """Writes a text file atomically: to a temporary file, flushed to disk, then renamed. Raises OSError.

    Without `flush` the file may be lost with the machine. A flush waits for what others write to the same disk, such as a
    checkpoint: a supervisor whose ranks run must not wait so long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as made, open(made, "w", encoding="utf-8", errors="backslashreplace") as out:
        out.write(text)
        if flush:
            out.flush()
            os.fsync(out.fileno())


def reserved(path: Path) -> Path:
    """The file beside `path` that reserves disk space for it, from a job's start to its end."""
    return path.with_name(f".{path.name}-reserved")


def reserve(path: Path) -> None:
    """Reserves disk space for a small text: a file of RESERVED bytes, which write_reserved() overwrites."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        reserved(path).write_bytes(b" " * RESERVED)


def free(path: Path) -> None:
    """Deletes the file that reserves disk space for `path`."""
    with contextlib.suppress(OSError):
        reserved(path).unlink()


def write_reserved(path: Path, text: str) -> None:
    """As write_aside, but into the reserved file: works on a full disk, without a free block or inode."""
    try:
        fd = os.open(reserved(path), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "wb") as out:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError("not the reserved file")
            out.write(text.encode("utf-8", "backslashreplace"))
            out.truncate()
            out.flush()
            os.fsync(fd)
        os.replace(reserved(path), path)
    except OSError:  # no reserved file, or a copy-on-write file system: deleting the file frees its blocks
        free(path)
        write_aside(path, text)
