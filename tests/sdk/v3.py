"""One job by the SageMaker SDK v3, in its local mode: `python v3.py JOB.json RESULT.json`, in the client's own venv."""

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.distributed import MPI, Torchrun
from sagemaker.train.model_trainer import Mode

ROLE = "arn:aws:iam::111122223333:role/algorun-test"
DISTRIBUTED = {"MPI": MPI, "Torchrun": Torchrun}


def train(job: dict) -> None:
    options = dict(job["options"])
    if "source_code" in options:
        options["source_code"] = SourceCode(source_dir=job["source"], **options["source_code"])
    if "distributed" in options:
        wish = dict(options["distributed"])
        options["distributed"] = DISTRIBUTED[wish.pop("type")](**wish)
    trainer = ModelTrainer(
        training_mode=Mode.LOCAL_CONTAINER,
        training_image=job["image"],
        role=ROLE,
        compute=Compute(instance_type="local_cpu", instance_count=job["hosts"]),
        local_container_root=job["root"],
        **options,
    )
    trainer.train(wait=True)


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text())
    versions = {name: version(name) for name in ("sagemaker", "sagemaker-train")}
    result = {"ok": True, "error": "", "versions": versions}
    try:
        train(job)
    except Exception as error:  # whatever the user of the SDK would see
        result |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
    Path(sys.argv[2]).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
