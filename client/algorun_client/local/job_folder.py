"""The folder of a local job: what any process may read or ask for. Files are written aside and renamed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorun.common.aside import aside
from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.common.json_values import table
from algorun_client.common.errors import Exists
from algorun_client.request.model import Kind

from .job_record import LocalJobRecord

FILE_SYSTEMS = "file-systems"  # below the root


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """Times of the local target, in seconds. SageMaker's own are the defaults where it has documented them."""

    stop_grace_s: float = 120.0  # from SIGTERM to SIGKILL
    sync_s: float = 5.0  # between two copies of a checkpoint folder to S3
    linger_s: float = 15.0  # for the other hosts, after one has failed


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The paths of one job, and what is done with them."""

    path: Path
    kind: Kind

    @classmethod
    def of(cls, root: Path, kind: Kind, job: str) -> JobFolder:
        """The folder of a job; it may not exist."""
        return cls(root / "jobs" / kind.value / job, kind)

    @classmethod
    def all(cls, root: Path, kind: Kind) -> list[JobFolder]:
        """The folders of all jobs of a kind."""
        with contextlib.suppress(FileNotFoundError):
            return [
                cls(Path(each.path), kind) for each in os.scandir(root / "jobs" / kind.value) if each.name[0] != "."
            ]
        return []

    @classmethod
    def at(cls, path: Path) -> JobFolder:
        """The job of a folder that `of` named."""
        return cls(path, Kind(path.parent.name))

    @property
    def job(self) -> str:
        return self.path.name

    @property
    def root(self) -> Path:
        """The folder below which everything of the local target lies."""
        return self.path.parents[2]

    @property
    def environments(self) -> Path:
        """A folder for each environment that jobs have made for their requirements; all jobs share them."""
        return self.root / "environments"

    @property
    def file_systems(self) -> Path:
        """Folders, or links, that stand for file systems of EFS and FSx, by their IDs."""
        return self.root / FILE_SYSTEMS

    @property
    def logs(self) -> Path:
        """A file for each log stream."""
        return self.path / "logs"

    @property
    def samples(self) -> Path:
        """A file for each host: how busy it was."""
        return self.path / "samples"

    @property
    def hosts(self) -> Path:
        return self.path / "hosts"

    @property
    def runner_log(self) -> Path:
        """What the runner prints: nothing, unless it has a defect."""
        return self.path / "runner.log"

    @property
    def stop(self) -> Path:
        """Exists once a stop was asked for."""
        return self.path / "stop"

    @property
    def interrupt(self) -> Path:
        """Exists while an interruption is asked for; the runner deletes it."""
        return self.path / "interrupt"

    @property
    def without_hosts(self) -> Path:
        """Exists if an interrupted job gets no new hosts."""
        return self.path / "without-hosts"

    @property
    def started(self) -> Path:
        """Exists once a runner has begun."""
        return self.path / "started"

    def create(self, record: LocalJobRecord, files: Mapping[str, Mapping[str, object]]) -> None:
        """Makes the folder with the record and other JSON files, complete or not at all. Raises Exists."""
        new = self.path.with_name(f".{uuid.uuid4().hex}")
        new.mkdir(parents=True)
        new.chmod(0o700)  # the request holds values of --env, which may be secrets
        try:
            for name, value in {**files, "record.json": record.to_json()}.items():
                (new / name).write_text(json.dumps(value))
            (new / "owner").touch()
            os.rename(new, self.path)
        except OSError as error:
            if self.path.exists():
                raise Exists("ResourceInUse", f"job {self.job} exists already") from None
            raise error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def read(self, name: str) -> dict[str, Any]:  # JSON of a file that this program alone writes
        """One of the job's JSON files. Raises FileNotFoundError, and UserError for a damaged one."""
        try:
            return table(loads((self.path / name).read_bytes()))
        except ValueError as error:
            raise self.damaged(name, error) from None

    def record(self) -> LocalJobRecord:
        """How far the job has come. Raises FileNotFoundError without the job, and UserError for a damaged record."""
        value = self.read("record.json")
        try:
            return LocalJobRecord.from_json(value)
        except ValueError as error:
            raise self.damaged("record.json", error) from None

    def damaged(self, name: str, error: Exception) -> UserError:
        """The error for one of the job's files."""
        return UserError(
            str(self.path / name), f"is damaged ({error})", fix=f"remove the job's folder {self.path}, and submit again"
        )

    def write(self, record: LocalJobRecord) -> None:
        """Only the owner of the job writes its record."""
        with aside(self.path / "record.json") as made:
            made.write_text(json.dumps(record.to_json()))

    @contextlib.contextmanager
    def own(self) -> Iterator[bool]:
        """Makes this process the owner of the job; False if another process is. The kernel ends it with the process."""
        with open(self.path / "owner", "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
