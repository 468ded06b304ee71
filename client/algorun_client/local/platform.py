"""Answers SageMaker's calls on this machine. The jobs run in processes of their own (`runner`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from algorun_client.aws import fields, service_model
from algorun_client.aws.api import Answer, ObjectStore
from algorun_client.aws.fields import Table
from algorun_client.aws.job_state import HOST_KIND
from algorun_client.common.errors import ApiError, Exists, NotFound
from algorun_client.request.model import Kind

from . import answers, job_description, refusals
from .containers import FILE as CONTAINERS
from .containers import Containers, clear, name_of, remove_orphans
from .docker_engine import DockerEngine
from .environment import for_runner
from .job_folder import FILE_SYSTEMS, JobFolder, LocalSettings
from .job_record import LocalJobRecord
from .stores import described

MOST_RESULTS = 100  # jobs of a page
DEFAULT_RESULTS = 10
LOST = "InternalServerError: the process that ran this job has ended, or this machine was restarted. See "


class LocalPlatform:
    """SageMakerApi. Any number of processes may use one `root`.

    `strict`: refuses also what only AWS needs, such as a missing role. `engine`: the hosts of new jobs are containers.
    """

    def __init__(
        self,
        root: Path,
        store: ObjectStore,
        settings: LocalSettings | None = None,
        *,
        strict: bool = False,
        engine: DockerEngine | None = None,
    ) -> None:
        self.root, self._store, self._strict, self._engine = root, store, strict, engine
        self._settings = settings or LocalSettings()
        self._runners: dict[Path, subprocess.Popen[bytes]] = {}  # those that this process has started

    # -- create ------------------------------------------------------------------------------------------------------

    def create_training_job(self, **request: object) -> Answer:
        """As SageMakerApi. Raises UserError for what only AWS can do, and for a bucket without a folder."""
        return {"TrainingJobArn": self.accept(Kind.TRAINING, request)}

    def create_processing_job(self, **request: object) -> Answer:
        """As create_training_job."""
        return {"ProcessingJobArn": self.accept(Kind.PROCESSING, request)}

    def accept(self, kind: Kind, request: Table, *, failure: str = "") -> str:
        """Checks a request and starts its job; returns the job's ARN. `failure`: the job fails at once for this reason."""
        refusals.check(kind, request, strict=self._strict)
        job = fields.required(request, _name_key(kind))
        folder = JobFolder.of(self.root, kind, job)
        taken = Exists("ResourceInUse", _in_use(kind, job), service_model.OPERATIONS[kind])
        if any(each.job.lower() == job.lower() for each in JobFolder.all(self.root, kind)):
            raise taken
        refusals.check_local(kind, request, needs_program=self._engine is None)
        refusals.check_inputs(kind, request, self._store, self.root / FILE_SYSTEMS)
        record = LocalJobRecord.new(time.time())
        if failure:
            record = record.finished("Failed", time.time(), failure=failure)
        files: dict[str, Mapping[str, object]] = {
            "request.json": request,
            "store.json": described(self._store),
            "settings.json": asdict(self._settings),
        }
        if self._engine is not None:
            remove_orphans(self._engine, self.root)
            image = self._engine.image(job_description.described(kind, request).program.image)
            files[CONTAINERS] = Containers(self._engine, image.identity).to_json()
        try:
            folder.create(record, files)
        except Exists:
            raise taken from None
        if not failure:
            self._run(folder)
        return answers.arn(kind, job)

    def _run(self, folder: JobFolder) -> None:
        """Starts the job's runner. It survives this process; a second one for the same job ends at once."""
        argv = [sys.executable, "-I", "-m", "algorun_client.local.runner", str(folder.path), folder.kind.value]
        with open(folder.runner_log, "ab") as log:
            runner = subprocess.Popen(
                argv,
                env=for_runner(os.environ),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._runners[folder.path] = runner

    # -- describe ----------------------------------------------------------------------------------------------------

    def describe_training_job(self, *, TrainingJobName: str) -> Answer:
        """As SageMakerApi."""
        folder, record = self._look(Kind.TRAINING, TrainingJobName, "DescribeTrainingJob")
        return {**answers.training(folder.read("request.json"), record), HOST_KIND: _host_kind(folder)}

    def describe_processing_job(self, *, ProcessingJobName: str) -> Answer:
        """As SageMakerApi."""
        folder, record = self._look(Kind.PROCESSING, ProcessingJobName, "DescribeProcessingJob")
        return {**answers.processing(folder.read("request.json"), record), HOST_KIND: _host_kind(folder)}

    def _look(self, kind: Kind, job: str, operation: str) -> tuple[JobFolder, LocalJobRecord]:
        folder = JobFolder.of(self.root, kind, job)
        missing = kind is Kind.PROCESSING and f"Could not find requested job with name: {job}"
        if "/" in job or not job or job.startswith(".") or not folder.path.is_dir():
            raise NotFound("ValidationException", missing or "Requested resource not found.", operation)
        return folder, self._current(folder)

    def _current(self, folder: JobFolder) -> LocalJobRecord:
        """The job's record. A job whose runner has died counts as failed; one that never got a runner gets it now."""
        runner = self._runners.get(folder.path)
        code = runner.poll() if runner else None
        record = folder.record()
        if record.has_ended:
            return record
        with folder.own() as is_ours:
            if is_ours:
                record = folder.record()
                if (folder.started.exists() or code) and not record.has_ended:
                    left = _cleared(folder)
                    record = record.finished("Failed", time.time(), failure=f"{LOST}{folder.runner_log}{left}")
                    folder.write(record)
                    shutil.rmtree(folder.hosts, ignore_errors=True)
        if is_ours and not record.has_ended and (runner is None or code is not None):
            self._run(folder)
        if not record.has_ended and folder.stop.exists():
            record = replace(record, status="Stopping", secondary="Stopping")
        return record

    # -- stop, list --------------------------------------------------------------------------------------------------

    def stop_training_job(self, *, TrainingJobName: str) -> Answer:
        """As SageMakerApi."""
        return self._stop(Kind.TRAINING, TrainingJobName, "StopTrainingJob")

    def stop_processing_job(self, *, ProcessingJobName: str) -> Answer:
        """As SageMakerApi."""
        return self._stop(Kind.PROCESSING, ProcessingJobName, "StopProcessingJob")

    def _stop(self, kind: Kind, job: str, operation: str) -> Answer:
        folder, record = self._look(kind, job, operation)
        if record.has_ended:
            text = f"The request was rejected because the {kind.value} job is in status {record.status}."
            raise ApiError("ValidationException", text, operation)
        folder.stop.touch()
        return {}

    def interrupt(self, job: str, *, for_good: bool = False) -> None:
        """Takes the hosts of a spot training job away, as AWS does; the job starts again. Raises NotFound, ApiError.

        `for_good`: AWS has no others, so the job waits for them until its time is over.
        """
        folder, record = self._look(Kind.TRAINING, job, "Interrupt")
        if record.has_ended or not folder.read("request.json").get("EnableManagedSpotTraining"):
            raise ApiError("ValidationException", f"{job} is not a spot job that runs", "Interrupt")
        if for_good:
            folder.without_hosts.touch()
        folder.interrupt.touch()

    def list_training_jobs(self, **query: object) -> Answer:
        """As SageMakerApi."""
        return self._list(Kind.TRAINING, query)

    def list_processing_jobs(self, **query: object) -> Answer:
        """As SageMakerApi."""
        return self._list(Kind.PROCESSING, query)

    def _list(self, kind: Kind, query: Table) -> Answer:
        wanted, status = fields.text(query, "NameContains").lower(), fields.text(query, "StatusEquals")
        found = [
            (each.job, self._current(each)) for each in JobFolder.all(self.root, kind) if wanted in each.job.lower()
        ]
        found = [pair for pair in found if status in ("", pair[1].status)]
        order = ORDERS.get(fields.text(query, "SortBy"), _by_time)
        found.sort(key=order, reverse=fields.text(query, "SortOrder") != "Ascending")
        token, most = fields.text(query, "NextToken"), fields.number(query, "MaxResults") or DEFAULT_RESULTS
        names = [job for job, _ in found]
        at = names.index(token) + 1 if token in names else 0
        page = found[at : at + min(most, MOST_RESULTS)]
        word = "Training" if kind is Kind.TRAINING else "Processing"
        answer: dict[str, object] = {
            f"{word}JobSummaries": [answers.summary(kind, job, record) for job, record in page]
        }
        if at + len(page) < len(found):
            answer["NextToken"] = page[-1][0]
        return answer


def _host_kind(folder: JobFolder) -> str:
    """What the hosts of a job are."""
    return "simulated hosts" if Containers.of(folder) is None else "containers"


def _by_time(pair: tuple[str, LocalJobRecord]) -> tuple[str | float, str]:
    return pair[1].created, pair[0]


# How List orders jobs: by SortBy, else by the time.
ORDERS: dict[str, Callable[[tuple[str, LocalJobRecord]], tuple[str | float, str]]] = {
    "Name": lambda pair: (pair[0], ""),
    "Status": lambda pair: (pair[1].status, pair[0]),
}


def _cleared(folder: JobFolder) -> str:
    """Removes the containers of a job whose runner has died. Returns what the failure is to say, "" if nothing is left."""
    containers = Containers.of(folder)
    if containers is not None:
        try:
            clear(folder, containers)
        except ApiError as error:
            return f". Its containers {name_of(folder)}-.. could not be removed: {error}"
    return ""


def _name_key(kind: Kind) -> str:
    return "TrainingJobName" if kind is Kind.TRAINING else "ProcessingJobName"


def _in_use(kind: Kind, job: str) -> str:
    """SageMaker's words."""
    if kind is Kind.TRAINING:
        head = "Training job names must be unique within an AWS account and region, and a training job with this name"
    else:
        head = "Job name must be unique within an AWS account and region, and a job with this name"
    return f"{head} already exists ({answers.arn(kind, job)})"
