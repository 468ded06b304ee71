"""SageMaker Python SDK v2, generic Estimator: the bundled `ddp` entrypoint, its options as hyperparameters.

Without channels it trains on the handwritten digits that the image holds. An Estimator drops `distribution=`: the
launch is chosen by hyperparameters.

    pip install sagemaker==2.257.7    # SDK v3 has other modules
    python examples/v2_estimator.py --image-uri algorun:cpu --local
"""

import argparse
from pathlib import Path

from sagemaker.estimator import Estimator
from sagemaker.local import LocalSession

parser = argparse.ArgumentParser()
parser.add_argument("--image-uri", required=True)
parser.add_argument("--role", default="arn:aws:iam::123456789012:role/unused-in-local-mode")
parser.add_argument("--local", action="store_true", help="in containers on this machine")
parser.add_argument("--train", help="s3:// or file:// address of image folders, class/*.png|jpg")
parser.add_argument("--validation")
options = parser.parse_args()

local = {}
if options.local:
    local = {"sagemaker_session": LocalSession(), "output_path": f"file://{Path.cwd() / 'output'}"}
channels = {name: getattr(options, name) for name in ("train", "validation") if getattr(options, name)}

Estimator(
    image_uri=options.image_uri,
    role=options.role,
    instance_count=2,
    instance_type="local" if options.local else "ml.g5.12xlarge",
    hyperparameters={"epochs": 5, "algorun_slots": 2} if options.local else {"epochs": 20},
    **local,
).fit(channels or None)
