"""boto3 alone: CreateTrainingJob. Hyperparameters are strings; those of the launcher are its interface.

pip install boto3==1.44.8
python examples/create_training_job.py --image-uri .. --role .. --code s3://bucket/sourcedir.tar.gz --output s3://bucket/out
"""

import argparse
import json
import time

import boto3

parser = argparse.ArgumentParser()
parser.add_argument("--image-uri", required=True)
parser.add_argument("--role", required=True)
parser.add_argument("--code", required=True, help="s3://.. of a tar.gz with train.py at its root")
parser.add_argument("--output", required=True, help="s3://..")
parser.add_argument("--dry-run", action="store_true", help="print the request, send nothing")
options = parser.parse_args()

request = {
    "TrainingJobName": f"algorun-{time.strftime('%Y-%m-%d-%H-%M-%S')}",
    "AlgorithmSpecification": {"TrainingImage": options.image_uri, "TrainingInputMode": "File"},
    "RoleArn": options.role,
    "HyperParameters": {
        "sagemaker_program": json.dumps("train.py"),
        "sagemaker_submit_directory": json.dumps(options.code),
        "sagemaker_torch_distributed_enabled": "true",
        "epochs": "3",
        "lr": "0.1",
    },
    "OutputDataConfig": {"S3OutputPath": options.output},
    "CheckpointConfig": {"S3Uri": f"{options.output.rstrip('/')}/checkpoints"},
    "ResourceConfig": {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 2, "VolumeSizeInGB": 50},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
}
if options.dry_run:
    print(json.dumps(request, indent=2))
else:
    client = boto3.client("sagemaker")
    client.create_training_job(**request)
    client.get_waiter("training_job_completed_or_stopped").wait(TrainingJobName=request["TrainingJobName"])
    print(client.describe_training_job(TrainingJobName=request["TrainingJobName"])["TrainingJobStatus"])
