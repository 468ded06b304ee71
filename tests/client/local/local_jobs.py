"""Requests for the local target, and waits for its jobs."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorun_client.aws.api import ObjectStore
from algorun_client.local.folder_store import FolderStore
from algorun_client.local.job_folder import LocalSettings
from algorun_client.local.log_reading import LocalLogs
from algorun_client.local.platform import LocalPlatform

BUCKET = "s3://local"
QUICK = LocalSettings(stop_grace_s=20.0, sync_s=0.1, linger_s=5.0)
TRAINING, PROCESSING = "/aws/sagemaker/TrainingJobs", "/aws/sagemaker/ProcessingJobs"
LIMIT_S = 60.0


def archive(program: str) -> bytes:
    """The code of a job: one file, train.py."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = len(program.encode())
        tar.addfile(info, io.BytesIO(program.encode()))
    return out.getvalue()


def training(
    store: ObjectStore, job: str, program: str, *, hosts: int = 2, marker: str = "", **more: Any
) -> dict[str, Any]:
    """A request for a training job; stores its code."""
    store.put(f"{BUCKET}/code/{job}.tar.gz", archive(program))
    environment = {"ALGORUN_TEST": marker, **more.pop("Environment", {})}
    return {
        "TrainingJobName": job,
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "HyperParameters": {
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": f"{BUCKET}/code/{job}.tar.gz",
            **more.pop("HyperParameters", {}),
        },
        "OutputDataConfig": {"S3OutputPath": f"{BUCKET}/out"},
        "ResourceConfig": {"InstanceCount": hosts, **more.pop("ResourceConfig", {})},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
        "Environment": {name: value for name, value in environment.items() if value},
        **more,
    }


def processing(job: str, *words: str, hosts: int = 1, marker: str = "", **more: Any) -> dict[str, Any]:
    """A request for a processing job."""
    return {
        "ProcessingJobName": job,
        "AppSpecification": {"ContainerEntrypoint": list(words)},
        "ProcessingResources": {"ClusterConfig": {"InstanceCount": hosts}},
        "Environment": {"ALGORUN_TEST": marker} if marker else {},
        **more,
    }


def channel(name: str, uri: str, **source: Any) -> dict[str, Any]:
    """An input channel."""
    return {"ChannelName": name, "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri, **source}}}


class Local:
    """A local target in a test's folder."""

    def __init__(self, root: Path, settings: LocalSettings = QUICK) -> None:
        self.root, self.store = root, FolderStore(root)
        self.platform = LocalPlatform(root, self.store, settings)
        self.logs = LocalLogs(root)

    def describe(self, job: str) -> Mapping[str, Any]:
        return self.platform.describe_training_job(TrainingJobName=job)

    def ended(self, job: str, *, processing: bool = False) -> Mapping[str, Any]:
        """Waits for the job's end."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            describe = self.platform.describe_processing_job
            answer = describe(ProcessingJobName=job) if processing else self.describe(job)
            status = answer["ProcessingJobStatus" if processing else "TrainingJobStatus"]
            if status in ("Completed", "Failed", "Stopped"):
                return answer
            assert time.monotonic() < deadline, (answer, self.lines(job))
            time.sleep(0.05)

    def until(self, job: str, word: str, count: int = 1, group: str = TRAINING) -> None:
        """Waits for a number of lines with this text."""
        deadline = time.monotonic() + LIMIT_S
        while sum(word in line for line in self.lines(job, group)) < count:
            assert time.monotonic() < deadline, self.lines(job, group)
            time.sleep(0.05)

    def lines(self, job: str, group: str = TRAINING) -> list[str]:
        """HOST: TEXT of all streams."""
        found = []
        for stream in self.logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=f"{job}/")["logStreams"]:
            name = stream["logStreamName"]
            answer = self.logs.get_log_events(logGroupName=group, logStreamName=name, startFromHead=True)
            host = name.split("/")[1].rpartition("-")[0]
            found += [f"{host}: {event['message']}" for event in answer["events"]]
        return found

    def statuses(self, job: str) -> list[str]:
        return [each["Status"] for each in self.describe(job)["SecondaryStatusTransitions"]]

    def members(self, uri: str) -> dict[str, bytes]:
        """The files of a tar.gz."""
        with tarfile.open(fileobj=io.BytesIO(self.store.get(uri)), mode="r:gz") as tar:
            return {each.name: tar.extractfile(each).read() for each in tar if each.isfile()}

    def keys(self, prefix: str) -> list[str]:
        return [each.uri.removeprefix(prefix) for each in self.store.list(prefix)]


def pid_of_runner(local: Local, job: str) -> int:
    """The process that owns a job."""
    wanted = f"/jobs/training/{job}"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if "algorun_client.local.runner" in words and any(word.endswith(wanted) for word in words):
            return int(pid)
    raise AssertionError(f"{job} has no runner")
