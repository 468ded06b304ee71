"""SageMaker Python SDK v2, framework estimator: `distribution=` chooses the launch.

pip install sagemaker==2.257.7    # SDK v3 has other modules
python examples/v2_pytorch.py --image-uri algorun:cpu --local
python examples/v2_pytorch.py --image-uri ACCOUNT.dkr.ecr.REGION.amazonaws.com/algorun:0.2.0 --role ROLE_ARN
"""

import argparse
from pathlib import Path

from sagemaker.local import LocalSession
from sagemaker.pytorch import PyTorch

parser = argparse.ArgumentParser()
parser.add_argument("--image-uri", required=True)
parser.add_argument("--role", default="arn:aws:iam::123456789012:role/unused-in-local-mode")
parser.add_argument("--local", action="store_true", help="in containers on this machine")
options = parser.parse_args()

local = {}
if options.local:
    session = LocalSession()
    session.config = {"local": {"local_code": True}}
    local = {"sagemaker_session": session, "output_path": f"file://{Path.cwd() / 'output'}"}

PyTorch(
    image_uri=options.image_uri,
    role=options.role,
    source_dir=str(Path(__file__).parent),
    entry_point="train.py",
    instance_count=2,
    instance_type="local" if options.local else "ml.g5.12xlarge",
    distribution={"torch_distributed": {"enabled": True}},
    hyperparameters={"epochs": 3, "lr": 0.1},
    metric_definitions=[{"Name": "train:loss", "Regex": r"train_loss: ([0-9\.]+)"}],
    **local,
).fit()
