"""The Request: everything that will be uploaded and sent, before anything is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from .fingerprint import Fingerprint

# The version of what a request asks of the image's launcher; in the job's environment as ALGORUN_REQUEST_FORMAT. The
# image names the highest one that it knows in its label org.algorun.request-format. A request has the lowest one that it
# needs: an older image runs whatever it can run.
FORMAT, FORMAT_PER_GPU, FORMAT_TUNED = 1, 2, 3
HOLD = "ALGORUN_HOLD_ON_FAILURE_S"  # in the environment of a job that asks for a hold

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


class Kind(StrEnum):
    """What SageMaker is asked to run."""

    TRAINING = "training"  # CreateTrainingJob
    PROCESSING = "processing"  # CreateProcessingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One object that has to exist before the job is created. Either `path` or `data` holds its content."""

    uri: str  # s3://BUCKET/KEY
    size: int  # bytes
    sha256: str  # hexadecimal, of the content: an object with the same one is not uploaded again
    path: Path | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAddress:
    """Where everything of a task is kept: s3://BUCKET/PROJECT/TASK/ (below `prefix`, if there is one).

    `task.json`; `state/`; `input/NAME/FINGERPRINT/`; `code/SHA256.tar.gz`; of execution NNNN `jobs/NNNN/request.json`,
    `jobs/NNNN/fingerprint.json`, `jobs/NNNN/begin.json` (of a series of jobs), `jobs/NNNN/decision` (and `decision-ID`) and
    `jobs/NNNN/output/`. SageMaker puts a training
    job's archives into `jobs/NNNN/output/JOB/output/`. From another machine everything can be found again.
    """

    bucket: str
    project: str
    task: str
    prefix: str = ""  # "" or "some/folder", without slashes at its ends
    uploads_of: str = ""  # of a point of a sweep: the swept task, which keeps code and inputs for all points

    @property
    def uri(self) -> str:
        """s3://BUCKET/[PREFIX/]PROJECT/TASK, without a slash at its end."""
        middle = f"{self.prefix}/" if self.prefix else ""
        return f"s3://{self.bucket}/{middle}{self.project}/{self.task}"

    def execution(self, number: int) -> str:
        """The folder of an execution, without a slash at its end."""
        return f"{self.uri}/jobs/{number:04d}"

    def fingerprint(self, number: int) -> str:
        """What decided the result of an execution. Beside its claim, and written before its job is created."""
        return f"{self.execution(number)}/fingerprint.json"

    def begin(self, number: int) -> str:
        """What an execution of a series of jobs found when it began."""
        return f"{self.execution(number)}/begin.json"

    def output(self, number: int) -> str:
        """The folder for the outputs of an execution, without a slash at its end."""
        return f"{self.execution(number)}/output"

    def values(self, number: int) -> str:
        """The last values of an execution's metrics, once somebody has read them."""
        return f"{self.execution(number)}/values.json"

    @property
    def state(self) -> str:
        """The folder of the task's checkpoints. It ends with a slash: without one, `state` would also name `state-2`."""
        return f"{self.uri}/state/"

    def input(self, name: str, fingerprint: str) -> str:
        """The folder of a local input with this content after its upload, with a slash at its end.

        Other content has another folder: what one client uploads never changes the data of another one's job.
        """
        return f"{self._uploads}/input/{name}/{fingerprint}/"

    def code(self, sha256: str) -> str:
        """The code archive with this content."""
        return f"{self._uploads}/code/{sha256}.tar.gz"

    @property
    def _uploads(self) -> str:
        return replace(self, task=self.uploads_of or self.task).uri


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One execution of a task, complete. `create` is what is sent, byte for byte."""

    kind: Kind
    address: TaskAddress
    number: int  # the execution, from 1
    job: str  # the job's name, fixed by task and number
    create: Mapping[str, Json]  # the arguments of CreateTrainingJob or CreateProcessingJob
    uploads: tuple[Upload, ...]
    mirrors: tuple[str, ...] = ()  # prefixes below which nothing but `uploads` may exist when the job starts
    unknown: tuple[str, ...] = ()  # fields that could not be known without credentials, as `A.B[0].C`
    fingerprint: Fingerprint | None = None  # of what decides the result
    warnings: tuple[str, ...] = ()  # for the user: metrics left out, variables that look like secrets
