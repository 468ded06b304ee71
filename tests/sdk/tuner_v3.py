"""A tuner of the SageMaker SDK v3 against a server: `python tuner_v3.py JOB.json RESULT.json`, in the client's own venv."""

import json
import sys
from pathlib import Path

import boto3
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.parameter import CategoricalParameter, ContinuousParameter, IntegerParameter
from sagemaker.core.shapes import OutputDataConfig
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.distributed import Torchrun
from sagemaker.train.tuner import HyperparameterTuner

job = json.loads(Path(sys.argv[1]).read_text())
options = dict(job["options"])
if "processes" in options:
    options["distributed"] = Torchrun(process_count_per_node=options.pop("processes"))
if "command" in options:
    source = SourceCode(source_dir=job["source"], command=options.pop("command"))
else:
    source = SourceCode(source_dir=job["source"], entry_script=job["program"])
trainer = ModelTrainer(
    training_image=job["image"],
    role=job["role"],
    compute=Compute(instance_type="ml.m5.large", instance_count=job["hosts"]),
    source_code=source,
    hyperparameters={"epochs": 2},
    output_data_config=OutputDataConfig(s3_output_path="s3://algorun/out"),
    base_job_name="tuned",
    sagemaker_session=Session(boto3.Session(), default_bucket="algorun"),
    **options,
)
tuner = HyperparameterTuner(
    trainer,
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
)
tuner.tune(job_name=job["name"], wait=False)
Path(sys.argv[2]).write_text(json.dumps({"tuner": tuner._current_job_name}))
