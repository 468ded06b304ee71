"""SageMaker on this machine: the same calls, the same Request, simulated hosts or containers, and folders in place of S3.

`connect` returns a Target. Everything is kept below one root folder, so any process sees the same jobs:

```
ROOT/s3/BUCKET/KEY                   objects
ROOT/jobs/training/JOB/              a job: request.json, record.json, logs/, markers of requests to stop or interrupt
ROOT/jobs/training/JOB/samples/       how busy each host was
ROOT/jobs/training/JOB/hosts/algo-1  the /opt/ml of a host, while the job runs
```

Simulated hosts see of the user's shell what they need to start (PATH, HOME, proxies, CUDA_*); all else is in the request, as on
SageMaker. They share this machine's files, so there is no /opt/ml: it stands below SAGEMAKER_BASE_DIR, and paths that begin
with /opt/ml in arguments, hyperparameters and variables are replaced. Containers have an /opt/ml of their own.

`platform` answers the calls. A process of its own, `runner`, carries a job out and survives the client.
"""

from __future__ import annotations

import os
from pathlib import Path

from algorun.common.errors import UserError
from algorun_client.aws.api import ReadyTarget, Target

from .docker_engine import DockerEngine
from .folder_store import FolderStore
from .host_figures_reading import LocalCloudWatch
from .log_reading import LocalLogs
from .platform import LocalPlatform

__all__ = ["DockerEngine", "LocalCloudWatch", "LocalLogs", "LocalPlatform", "connect"]


def connect(root: Path, engine: DockerEngine | None = None) -> Target:
    """The local target below `root`. Creates nothing. Raises UserError on another system than Linux.

    `engine`: the hosts of new jobs are its containers, else they are simulated.
    """
    if os.uname().sysname != "Linux":
        raise UserError(
            "--where local", f"hosts are simulated on Linux only, this is {os.uname().sysname}", fix="--where aws"
        )
    store = FolderStore(root)
    platform = LocalPlatform(root, store, engine=engine)
    return ReadyTarget("local", platform, LocalLogs(root), store, LocalCloudWatch(root))
