"""Scripts as their frameworks publish them: downloaded at a pinned commit, compared with their hash, never changed.

`python -m tests.frameworks.environments` downloads them; none of them is part of this repository.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import textwrap
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

FOLDER = ROOT / ".build" / "frameworks" / "published"
SITE = "https://raw.githubusercontent.com"
DOWNLOAD_S = 30


@dataclass(frozen=True)
class Page:
    """A file of a public repository."""

    path: str  # OWNER/NAME/COMMIT/FILE
    sha256: str

    @property
    def kept(self) -> Path:
        return FOLDER / self.path.replace("/", "+")

    def text(self) -> str | None:
        """What it says, None if it is not here and cannot be downloaded. Raises ValueError if it says something else."""
        if not self.kept.is_file():
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{SITE}/{self.path}", timeout=DOWNLOAD_S) as answer,
            ):
                FOLDER.mkdir(parents=True, exist_ok=True)
                aside = self.kept.with_suffix(".part")
                aside.write_bytes(answer.read())
                aside.replace(self.kept)
        if not self.kept.is_file():
            return None
        content = self.kept.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ValueError(f"{self.kept} is not {SITE}/{self.path}: delete it")
        return content.decode()


JAX_GUIDE = Page(
    "jax-ml/jax/cec06d116c05f0d52adfceee3d3b730fdbcb0ce5/docs/multi_process.md",
    "33cb549971cd444cdf463d5fd8a5970c43e4868a8061e09a24becc7f194cc75e",
)
JAX_KUBERNETES = Page(
    "jax-ml/jax/cec06d116c05f0d52adfceee3d3b730fdbcb0ce5/examples/k8s/example.yaml",
    "c0b5d742b535439e41ebb635ded4ed911fe2533cf34e02f8230fa35f62902a6e",
)
KERAS_TUTORIAL = Page(
    "tensorflow/docs/7c3650212740204359d4ceae481abc79345541be/site/en/tutorials/distribute/multi_worker_with_keras.ipynb",
    "0f0d327aa1f37e8667983d6251711868004a0383cb96ee07fa251b26b2dda8bd",
)
DEEPSPEED_CIFAR = Page(
    "deepspeedai/DeepSpeedExamples/45b4b7156c8794a3452a5a7d03dbd8d797068569/training/cifar/cifar10_deepspeed.py",
    "4ae71cfb528a3b91b8f95eddeb0787eba98db2b4b5b48631f5248f6765234666",
)
ACCELERATE_CV = Page(
    "huggingface/accelerate/16cb6eb80dd9aa8b4df1a63ef57863e455d53b83/examples/cv_example.py",
    "1837df7031a8f30f044f9d440695ce33e070737f73b3ef3ff6a0d1220cc642b0",
)
LIGHTNING_CLI = Page(
    "Lightning-AI/pytorch-lightning/7f0c3436cd3f6ad3753125672024fc415cbcb414/docs/source-pytorch/cli/lightning_cli_intermediate.rst",
    "b1bd1dadc7ca8a135074f704bd1b8e679bb8d3fc32eed41664abb489b95ae115",
)
FABRIC_MNIST = Page(
    "Lightning-AI/pytorch-lightning/7f0c3436cd3f6ad3753125672024fc415cbcb414/examples/fabric/image_classifier/train_fabric.py",
    "4b9430c1975b705826557aa7b108e8a210ef789cd015c006dfbb8ee075ff0b93",
)
_SMP_MNIST = "aws/amazon-sagemaker-examples/a75d5f253ef182c78a7e1daa272a2f6ae2c86080/training/distributed_training/tensorflow/model_parallel/mnist/utils"
SMP_TF2 = Page(f"{_SMP_MNIST}/tf2.py", "4b6b87aee7b5c5d9eb4b1d25f758bea6595d04709896252f2732ed5fbfff1350")
SMP_TF2_HVD = Page(f"{_SMP_MNIST}/tf2_hvd.py", "474f489a7a4ea2857477a02a6e5b22fd3e4f3fb38aef6e73df3c150981b3518a")
PAGES = (
    JAX_GUIDE,
    JAX_KUBERNETES,
    KERAS_TUTORIAL,
    DEEPSPEED_CIFAR,
    ACCELERATE_CV,
    LIGHTNING_CLI,
    FABRIC_MNIST,
    SMP_TF2,
    SMP_TF2_HVD,
)
INDENTED = r"\n((?:\n| {4,}.*\n)+)"  # the lines of a block, which are indented


def _blocks(page: Page, text: str) -> Iterable[str]:
    """The pieces of code of a page: cells of a notebook, fenced or indented blocks of a text, a program in a Kubernetes file."""
    if page.path.endswith(".ipynb"):
        return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    if page.path.endswith(".md"):
        return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    if page.path.endswith(".rst"):
        return [
            textwrap.dedent(each).lstrip("\n") for each in re.findall(rf"^\.\. code:: python\n{INDENTED}", text, re.M)
        ]
    if page.path.endswith(".yaml"):
        return [textwrap.dedent(each) for each in re.findall(rf"^ *- \|{INDENTED}", text, re.M)]
    return [text]


def save(page: Page, folder: Path, name: str, start: str = "") -> Path | None:
    """Writes the piece of code that begins with `start` into a file, without a notebook's %%writefile line.

    Returns None if the page cannot be had.
    """
    text = page.text()
    if text is None:
        return None
    (code,) = (block for block in _blocks(page, text) if block.startswith(start))
    path = folder / name
    path.write_text(code.removeprefix(f"%%writefile {name}\n"))
    return path
