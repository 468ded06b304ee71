"""The server in a process of its own, for tests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
START_S = 60.0
REGION = "us-east-1"
ACCOUNT = "123456789012"  # moto's


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """Where a running server answers."""

    url: str
    moto_url: str
    root: Path

    def environ(self) -> dict[str, str]:
        """Variables that send boto3 there."""
        return {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nowhere",
            "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
            "AWS_ENDPOINT_URL": self.moto_url,
            "AWS_ENDPOINT_URL_SAGEMAKER": self.url,
            "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": self.url,  # boto3 takes its name from the service id "CloudWatch Logs"
            "AWS_ENDPOINT_URL_ECR": self.url,
            "AWS_ENDPOINT_URL_SERVICE_QUOTAS": self.url,
            "AWS_ENDPOINT_URL_S3": self.moto_url,
            "NO_PROXY": "127.0.0.1",
        }

    def faults(self, **values: Any) -> dict[str, Any]:
        """Sets faults (see `faults.Faults`); without any it resets all. `interrupt="JOB"` interrupts a job."""
        return self._post("/__faults", values)

    def image(
        self, session: Any, repository: str = "algorun", tag: str = "1", region: str = REGION, **labels: str
    ) -> str:
        """Puts an image with these labels into ECR; returns its address. `session`: boto3's, with `environ`."""
        config = {"architecture": "amd64", "os": "linux", "config": {"Labels": labels}}
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        described = {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(json.dumps(config))}
        described["digest"] = self._post("/__layers/", config)["digest"]
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": described, "layers": []}
        ecr = session.client("ecr", region_name=region)
        with contextlib.suppress(ecr.exceptions.RepositoryAlreadyExistsException):
            ecr.create_repository(repositoryName=repository)
        text = json.dumps(manifest)
        ecr.put_image(
            repositoryName=repository,
            imageManifest=text,
            imageManifestMediaType=kind,
            imageTag=tag,
            imageDigest=f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",  # moto's own is that of the layers alone
        )
        return f"{ACCOUNT}.dkr.ecr.{region}.amazonaws.com/{repository}:{tag}"

    def _post(self, path: str, value: object) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(value).encode())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=START_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


@contextlib.contextmanager
def running(root: Path, *options: str) -> Iterator[ServerProcess]:
    """Starts the server, and ends it afterwards."""
    argv = [sys.executable, "-m", "tests.sagemaker_server", "--root", str(root), *options]
    process = subprocess.Popen(argv, cwd=TOP, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    late = threading.Timer(START_S, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        url, moto_url = process.stdout.readline().strip(), process.stdout.readline().strip()
        late.cancel()
        assert url, "the server has ended"
        assert moto_url, "the server has ended"
        yield ServerProcess(url, moto_url, root)
    finally:
        late.cancel()
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
