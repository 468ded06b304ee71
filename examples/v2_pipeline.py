"""SageMaker Pipelines with SDK v2: one step trains with the image, as an estimator would.

A step takes what the estimator's fit() would send. Steps of other kinds, such as AWS's Spark processing, stand beside it and
read its artifact: `step.properties.ModelArtifacts.S3ModelArtifacts`.

    pip install sagemaker==2.257.7    # SDK v3 has other modules
    python examples/v2_pipeline.py --image-uri algorun:cpu --local
"""

import argparse
import sys
from pathlib import Path

from sagemaker.estimator import Estimator
from sagemaker.workflow.pipeline import Pipeline
from sagemaker.workflow.pipeline_context import LocalPipelineSession, PipelineSession
from sagemaker.workflow.steps import TrainingStep

parser = argparse.ArgumentParser()
parser.add_argument("--image-uri", required=True)
parser.add_argument("--role", default="arn:aws:iam::123456789012:role/unused-in-local-mode")
parser.add_argument("--local", action="store_true", help="in containers on this machine")
options = parser.parse_args()

session = LocalPipelineSession() if options.local else PipelineSession()
local = {"output_path": f"file://{Path.cwd() / 'output'}"} if options.local else {}
estimator = Estimator(
    image_uri=options.image_uri,
    role=options.role,
    instance_count=2,
    instance_type="local" if options.local else "ml.g5.12xlarge",
    hyperparameters={"epochs": 5, "algorun_slots": 2} if options.local else {"epochs": 20},
    sagemaker_session=session,
    **local,
)
step = TrainingStep(name="Train", step_args=estimator.fit())
pipeline = Pipeline(name="digits", steps=[step], sagemaker_session=session)
pipeline.upsert(role_arn=options.role)
execution = pipeline.start()
if options.local:  # it has run to its end
    status = execution.describe()["PipelineExecutionStatus"]
    print(f"pipeline: {status}")
    sys.exit(status != "Succeeded")
