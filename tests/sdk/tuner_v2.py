"""A tuner of the SageMaker SDK v2 against a server: `python tuner_v2.py JOB.json RESULT.json`, in the client's own venv."""

import json
import sys
from pathlib import Path

import boto3
import sagemaker
from sagemaker.pytorch import PyTorch
from sagemaker.tuner import CategoricalParameter, ContinuousParameter, HyperparameterTuner, IntegerParameter

job = json.loads(Path(sys.argv[1]).read_text())
session = sagemaker.Session(boto3.Session(), default_bucket="algorun")
estimator = PyTorch(
    entry_point=job["program"],
    source_dir=job["source"],
    image_uri=job["image"],
    role=job["role"],
    instance_type="ml.m5.large",
    instance_count=job["hosts"],
    output_path="s3://algorun/out",
    code_location="s3://algorun/code",
    hyperparameters={"epochs": 2},
    sagemaker_session=session,
    **job["options"],
)
tuner = HyperparameterTuner(
    estimator,
    objective_metric_name="val:loss",
    objective_type="Minimize",
    metric_definitions=[{"Name": "val:loss", "Regex": job["regex"]}],
    hyperparameter_ranges={
        "lr": ContinuousParameter(0.01, 1.0, scaling_type="Logarithmic"),
        "layers": IntegerParameter(1, 8),
        "optimizer": CategoricalParameter(["sgd", "adamw"]),
    },
    max_jobs=3,
    max_parallel_jobs=3,
    base_tuning_job_name=job["name"],
)
tuner.fit(wait=False)
Path(sys.argv[2]).write_text(json.dumps({"tuner": tuner.latest_tuning_job.name}))
