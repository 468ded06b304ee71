"""SageMaker Python SDK v3: ModelTrainer, with our launcher in place of the SDK's drivers.

pip install sagemaker==3.27.0    # SDK v2 has other modules
python examples/v3_model_trainer.py --image-uri algorun:cpu --local
"""

import argparse
from pathlib import Path

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.distributed import Torchrun
from sagemaker.train.model_trainer import Mode

parser = argparse.ArgumentParser()
parser.add_argument("--image-uri", required=True)
parser.add_argument("--role", default="arn:aws:iam::123456789012:role/unused-in-local-mode")
parser.add_argument("--local", action="store_true", help="in containers on this machine")
options = parser.parse_args()

ModelTrainer(
    training_mode=Mode.LOCAL_CONTAINER if options.local else Mode.SAGEMAKER_TRAINING_JOB,
    training_image=options.image_uri,
    role=options.role,
    # exec: the stop signal must reach the launcher, not a shell around it.
    source_code=SourceCode(
        source_dir=str(Path(__file__).parent), entry_script="train.py", command="exec algorun train"
    ),
    distributed=Torchrun(process_count_per_node=2 if options.local else None),
    compute=Compute(instance_type="local_cpu" if options.local else "ml.g5.12xlarge", instance_count=2),
    hyperparameters={"epochs": 3, "lr": 0.1},
).train()
