"""The /opt/ml of a host, as SageMaker prepares it.

Source: "How Amazon SageMaker AI provides training information" and "How Amazon SageMaker Processing configures input and
output" in AWS's developer guide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from algorun_client.aws.fields import Table, inner, required, tables, text
from algorun_client.request.model import Kind

from .answers import arn
from .hosts import LocalHosts
from .job_description import JobDescription, local_text

FOLDERS = ("code", "model", "output/data", "checkpoints", "input/data", "input/config")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTrees:
    """What the trees of all hosts of a job are made of."""

    job: JobDescription
    request: Table
    hyperparameters: Mapping[str, str]
    hosts: LocalHosts  # what a host sees of its tree

    def make(self, base: Path, host: str) -> None:
        """Creates the folders and SageMaker's files of one host."""
        job = self.job
        for name in FOLDERS if job.kind is Kind.TRAINING else ("code", "output", "config"):
            (base / name).mkdir(parents=True, exist_ok=True)
        for folder in [*(each.folder for each in job.synced), *(each.folder for each in job.inputs)]:
            (base / folder).mkdir(parents=True, exist_ok=True)
        if job.kind is Kind.PROCESSING:
            _write(base / "config/resourceconfig.json", _resources(host, job, self.hosts.interface))
            described = {**self.request, "ProcessingJobArn": arn(job.kind, job.job)}
            _write(base / "config/processingjobconfig.json", described)
            return
        config, channels = base / "input/config", tables(self.request, "InputDataConfig")
        _write(config / "resourceconfig.json", _resources(host, job, self.hosts.interface))
        values = {name: local_text(value, self.hosts.opt_ml(base)) for name, value in self.hyperparameters.items()}
        _write(config / "hyperparameters.json", values)
        described = {required(each, "ChannelName"): _channel(each, self.request) for each in channels}
        _write(config / "inputdataconfig.json", described)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _resources(host: str, job: JobDescription, interface: str) -> dict[str, object]:
    groups = [
        {"instance_group_name": name, "instance_type": job.cluster.instance[members[0]], "hosts": list(members)}
        for name, members in job.cluster.groups.items()
        if members
    ]
    return {
        "current_host": host,
        "current_instance_type": job.cluster.instance[host],
        "current_group_name": next(name for name, members in job.cluster.groups.items() if host in members),
        "hosts": list(job.cluster.hosts),
        "instance_groups": groups,
        "network_interface_name": interface,
    }


def _channel(channel: Table, request: Table) -> dict[str, str]:
    source = inner(inner(channel, "DataSource"), "S3DataSource")
    mode = text(inner(request, "AlgorithmSpecification"), "TrainingInputMode")
    described = {
        "TrainingInputMode": text(channel, "InputMode") or mode,
        "S3DistributionType": text(source, "S3DataDistributionType") or "FullyReplicated",
        "RecordWrapperType": text(channel, "RecordWrapperType") or "None",
    }
    if content := text(channel, "ContentType"):
        described["ContentType"] = content
    return described
