"""SageMaker Python SDK v2, Processing: one process per host, each on its own shard of the data.

pip install sagemaker==2.257.7    # SDK v3 has other modules
python examples/processing.py --image-uri ACCOUNT.dkr.ecr.REGION.amazonaws.com/algorun:0.2.0 --role ROLE_ARN \\
    --input s3://bucket/raw --output s3://bucket/done
"""

import argparse
from pathlib import Path

from sagemaker.processing import ProcessingInput, ProcessingOutput, Processor

parser = argparse.ArgumentParser()
parser.add_argument("--image-uri", required=True)
parser.add_argument("--role", required=True)
parser.add_argument("--input", required=True)
parser.add_argument("--output", required=True)
options = parser.parse_args()

Processor(
    image_uri=options.image_uri,
    role=options.role,
    entrypoint=["algorun", "run", "--share-nothing", "/opt/ml/processing/code/count_files.py"],
    instance_count=2,
    instance_type="ml.m5.xlarge",
).run(
    inputs=[
        ProcessingInput(
            source=options.input, destination="/opt/ml/processing/input", s3_data_distribution_type="ShardedByS3Key"
        ),
        ProcessingInput(source=str(Path(__file__).parent / "count_files.py"), destination="/opt/ml/processing/code"),
    ],
    outputs=[ProcessingOutput(source="/opt/ml/processing/output", destination=options.output)],
)
