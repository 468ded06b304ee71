"""One job by the SageMaker SDK v3, in its local mode: `python v3.py JOB.json RESULT.json`, in the client's own venv."""

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import boto3
from sagemaker.core.local.local_session import LocalSession
from sagemaker.core.processing import Processor, ScriptProcessor
from sagemaker.core.shapes import ProcessingInput, ProcessingOutput, ProcessingS3Input, ProcessingS3Output
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


def file_input(name: str, folder: str) -> ProcessingInput:
    place = f"/opt/ml/processing/input/{name}"
    source = ProcessingS3Input(
        s3_uri=folder,
        local_path=place,
        s3_data_type="S3Prefix",
        s3_input_mode="File",
        s3_data_distribution_type="FullyReplicated",
        s3_compression_type="None",
    )
    return ProcessingInput(input_name=name, s3_input=source)


def process(job: dict) -> None:
    session = LocalSession(boto_session=boto3.Session(), s3_endpoint_url=job["s3"] or None, default_bucket="algorun")
    session.config = {"local": {"local_code": not job["s3"], "container_root": job["root"]}}
    options = dict(job["options"])
    arguments = [str(word) for word in options.pop("arguments", [])]
    common = {
        "image_uri": job["image"],
        "role": ROLE,
        "instance_type": "local",
        "instance_count": job["hosts"],
        "sagemaker_session": session,
    }
    target = ProcessingS3Output(
        s3_uri=f"file://{job['out']}/processed", local_path="/opt/ml/processing/output", s3_upload_mode="EndOfJob"
    )
    files = {
        "inputs": [file_input("data", job["data"])],
        "outputs": [ProcessingOutput(output_name="results", s3_output=target)],
    }
    code = options.pop("code")
    if "entrypoint" in options:
        files["inputs"].append(file_input("code", job["source"]))
        Processor(**common, **options).run(**files, arguments=arguments)
    else:
        ScriptProcessor(**common, **options).run(code=f"{job['source']}/{code}", **files, arguments=arguments)


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text())
    versions = {name: version(name) for name in ("sagemaker", "sagemaker-train")}
    result = {"ok": True, "error": "", "versions": versions}
    try:
        match job["kind"]:
            case "ModelTrainer":
                train(job)
            case "Processing":
                process(job)
            case other:
                raise ValueError(f"kind {other!r}: ModelTrainer or Processing")
    except Exception as error:  # whatever the user of the SDK would see
        result |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
    Path(sys.argv[2]).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
