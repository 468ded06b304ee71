"""Puts the figures of hosts into CloudWatch (moto's), as SageMaker does, when a job's end is first seen."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from algorun_client.aws.job_state import GROUPS
from algorun_client.local.job_folder import JobFolder
from algorun_client.request.model import Kind

MOST = 100  # figures of one call


class PublishedFigures:
    """`client`: boto3's for CloudWatch."""

    def __init__(self, root: Path, client: Any) -> None:
        self._root, self._client = root, client
        self._lock = threading.Lock()
        self._published: set[tuple[Kind, str]] = set()

    def publish(self, kind: Kind, job: str) -> None:
        """Sends all samples of a job that has ended, once."""
        with self._lock:
            if (kind, job) in self._published:
                return
            self._published.add((kind, job))
            figures = list(self._figures(kind, job))
            for first in range(0, len(figures), MOST):
                self._client.put_metric_data(Namespace=GROUPS[kind], MetricData=figures[first : first + MOST])

    def _figures(self, kind: Kind, job: str) -> Iterator[dict[str, Any]]:
        for path in sorted(JobFolder.of(self._root, kind, job).samples.glob("*")):
            for line in path.read_text().splitlines():
                sample = json.loads(line)
                at = datetime.fromtimestamp(sample.pop("time"), UTC)
                for name, value in sample.items():
                    dimensions = [{"Name": "Host", "Value": f"{job}/{path.name}"}]
                    yield {"MetricName": name, "Dimensions": dimensions, "Timestamp": at, "Value": value}
