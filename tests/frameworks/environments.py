"""Environments with one framework each, on top of the project's own: `python -m tests.frameworks.environments` makes them.

The other tests do not need these packages, and `make test` does not run what needs them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import layered
from tests.conftest import ROOT
from tests.frameworks import published

FOLDER = ROOT / ".build" / "frameworks"
VISION = Path(sys.prefix) / "vision"  # where `make` puts torchvision; tests/train/parallel/model_zoo.py imports it
INSTALL_S = 900
# What is installed with all that it requires, and what without: tf_keras requires TensorFlow for GPUs.
ENVIRONMENTS: dict[str, tuple[list[str], list[str]]] = {
    "jax": (["jax[cpu]==0.10.2"], []),
    "tensorflow": (["tensorflow-cpu==2.21.0"], ["tf_keras==2.21.0"]),
    "torch": (["accelerate==1.15.0", "lightning==2.6.6", "jsonargparse[signatures]==4.53.0"], []),
    "deepspeed": (["deepspeed==0.19.8"], []),
}
# What DeepSpeed compiles on its first start without GPUs, and on its first one with offload. All ranks would wait for it,
# and wait for ever after a job that was killed meanwhile.
COMPILE = """
from deepspeed.ops.op_builder import cpu
for builder in (cpu.FusedAdamBuilder, cpu.ShareMemCommBuilder, cpu.CPUAdamBuilder):
    builder().load()
"""
COMPILE_S = 1800
EXTENSIONS = {"TORCH_EXTENSIONS_DIR": str(FOLDER / "deepspeed" / "torch_extensions")}


def _made_of(name: str) -> str:
    return f"{ENVIRONMENTS[name]}{COMPILE if name == 'deepspeed' else ''}"


def interpreter(name: str) -> Path | None:
    """The interpreter of an environment, None if it is not made, or made of something else."""
    done = FOLDER / name / "done.txt"
    made = done.is_file() and done.read_text() == _made_of(name) and (FOLDER / name / VISION.name).is_symlink()
    return FOLDER / name / "bin" / "python" if made else None


def make(name: str) -> None:
    """Makes an environment anew. Raises CalledProcessError or TimeoutExpired where pip cannot install."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    whole, alone = ENVIRONMENTS[name]
    python = layered.make(folder, *alone)
    (folder / VISION.name).symlink_to(VISION)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *whole]
    subprocess.run(pip, check=True, timeout=INSTALL_S)
    if name == "deepspeed":
        path = f"{python.parent}:{os.environ['PATH']}"  # ninja
        environ = {**os.environ, **EXTENSIONS, "PATH": path}
        subprocess.run([python, "-c", COMPILE], check=True, timeout=COMPILE_S, env=environ)
    (folder / "done.txt").write_text(_made_of(name))


if __name__ == "__main__":
    for each in ENVIRONMENTS:
        if interpreter(each) is None:
            print(f"making {FOLDER / each}", flush=True)
            make(each)
    for page in published.PAGES:
        if page.text() is None:
            print(f"cannot download {published.SITE}/{page.path}: its tests will be skipped", flush=True)
