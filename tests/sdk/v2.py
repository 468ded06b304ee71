"""One job by the SageMaker SDK v2, in its local mode: `python v2.py JOB.json RESULT.json`, in the client's own venv."""

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import boto3
from sagemaker.estimator import Estimator
from sagemaker.local import LocalSession
from sagemaker.processing import ProcessingInput, ProcessingOutput, Processor, ScriptProcessor
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow

ROLE = "arn:aws:iam::111122223333:role/algorun-test"


def session(job: dict) -> LocalSession:
    """With S3, code goes there as a tar and comes back from there; without, the code folder is mounted."""
    made = LocalSession(boto_session=boto3.Session(), s3_endpoint_url=job["s3"] or None, default_bucket="algorun")
    made.config = {"local": {"local_code": not job["s3"], "container_root": job["root"]}}
    return made


def train(kind: type, job: dict) -> None:
    options = dict(job["options"])
    if job["s3"]:
        options["code_location"] = "s3://algorun/code"
    estimator = kind(
        image_uri=job["image"],
        role=ROLE,
        instance_type="local",
        instance_count=job["hosts"],
        output_path=f"file://{job['out']}",
        sagemaker_session=session(job),
        **options,
    )
    estimator.fit(job["inputs"], wait=True)


def process(job: dict) -> None:
    options = dict(job["options"])
    arguments = [str(word) for word in options.pop("arguments", [])]
    common = {
        "image_uri": job["image"],
        "role": ROLE,
        "instance_type": "local",
        "instance_count": job["hosts"],
        "sagemaker_session": session(job),
    }
    inputs = [ProcessingInput(source=job["data"], destination="/opt/ml/processing/input/data")]
    outputs = [ProcessingOutput(source="/opt/ml/processing/output", destination="s3://algorun/processed")]
    code = options.pop("code")
    if "entrypoint" in options:
        inputs.append(ProcessingInput(source=job["source"], destination="/opt/ml/processing/input/code"))
        Processor(**common, **options).run(inputs=inputs, outputs=outputs, arguments=arguments)
    else:
        file = f"{job['source']}/{code}"
        ScriptProcessor(**common, **options).run(code=file, inputs=inputs, outputs=outputs, arguments=arguments)
    # This SDK puts outputs into S3 whatever the destination says (`file://` is replaced without a word).
    common["sagemaker_session"].download_data(f"{job['out']}/processed", "algorun", key_prefix="processed")


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text())
    result = {"ok": True, "error": "", "versions": {"sagemaker": version("sagemaker")}}
    try:
        match job["kind"]:
            case "PyTorch":
                train(PyTorch, job)
            case "TensorFlow":
                train(TensorFlow, job)
            case "Estimator":
                train(Estimator, job)
            case "Processing":
                process(job)
            case other:
                raise ValueError(f"kind {other!r}: PyTorch, TensorFlow, Estimator or Processing")
    except Exception as error:  # whatever the user of the SDK would see
        result |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
    Path(sys.argv[2]).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
