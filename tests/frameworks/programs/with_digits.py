"""A published script as it is, with scikit-learn's digits in place of the data set that it would download.

`with_digits.py torchvision|keras|smp|timm SCRIPT [ARGUMENT ..]`: MNIST and CIFAR10 of torchvision, mnist of Keras, that of a
script for smdistributed.modelparallel.tensorflow with checkpoints in this folder and S3 out of reach, or timm's pretrained model.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT))

from tests.frameworks.digits import digits  # noqa: E402
from tests.train.parallel.model_zoo import library  # noqa: E402


def give_torchvision() -> None:
    from PIL import Image

    torchvision = library("torchvision")

    class Digits:
        def __init__(self, root, train=True, transform=None, download=False):
            self.transform = transform
            self.images, self.labels = digits(*self.size, train=train)

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            return self.transform(Image.fromarray(self.images[index]).convert(self.mode)), int(self.labels[index])

    torchvision.datasets.MNIST = type("MNIST", (Digits,), {"size": (3, 2), "mode": "L"})
    torchvision.datasets.CIFAR10 = type("CIFAR10", (Digits,), {"size": (4, 0), "mode": "RGB"})


def give_keras() -> None:
    import tensorflow as tf

    tf.keras.datasets.mnist.load_data = lambda: (digits(3, 2, train=True), digits(3, 2, train=False))


def give_smp() -> None:
    """All digits twice: enough for 11 batches of 256. The same first weights in each job, which the scripts leave to chance. A folder
    of this one in place of SageMaker's, and nothing in place of S3."""
    import boto3

    import smdistributed.modelparallel.tensorflow as smp

    give_keras()
    import tensorflow as tf

    tf.keras.utils.set_random_seed(7)
    train, test = tf.keras.datasets.mnist.load_data()
    twice = tuple(np.concatenate([each, each]) for each in train)
    tf.keras.datasets.mnist.load_data = lambda path: (twice, test)
    here = {"/opt/ml/checkpoints": str(Path("checkpoints").resolve())}
    exists = os.path.exists
    os.path.exists = lambda path: exists(here.get(path, path))
    manager = smp.CheckpointManager
    smp.CheckpointManager = lambda checkpoint, directory: manager(checkpoint, here[directory])
    os.environ["SM_MODULE_DIR"] = "s3://bucket/job/source/sourcedir.tar.gz"
    boto3.resource = mock.Mock()


def give_timm() -> None:
    """A small model, not trained, in place of the pretrained one. The script itself names a folder of images."""
    timm = library("timm")
    whole = timm.create_model
    timm.create_model = lambda name, pretrained, **options: whole("test_resnet", **options)


if __name__ == "__main__":
    {"torchvision": give_torchvision, "keras": give_keras, "smp": give_smp, "timm": give_timm}[sys.argv[1]]()
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
