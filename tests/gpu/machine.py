"""The device that the checks run on: the only place that decides between GPU and CPU."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from algorun import __version__
from algorun.common.errors import ExitCode, UserError
from algorun.machine import nvidia, probe

from . import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 120.0  # torch's import and the driver's start, also from a cold disk
DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
FIX = "make test PART=gpu GPU_PYTHON=/path/to/python, one whose torch is built with CUDA"


@dataclass(frozen=True, slots=True)
class Machine:
    """The device and the software. Sizes in bytes, of the first GPU (of the host's memory for the CPU)."""

    kind: str  # cuda or cpu
    names: tuple[str, ...]
    memory_bytes: int
    free_bytes: int
    driver: str
    torch: str
    cuda: str
    nccl: str
    transformers: str  # absent where it is not installed
    python: str
    linux: str
    algorun: str
    commit: str = ""  # with a `+` if files differ from it; "" outside of a repository

    @property
    def count(self) -> int:
        """GPUs; 0 for the CPU."""
        return len(self.names) if self.kind == "cuda" else 0

    @property
    def on_gpu(self) -> bool:
        return self.kind == "cuda"

    def identity(self) -> dict[str, object]:
        """What figures depend on, besides algorun itself: those of equal machines may stand in one table.

        Each row says which commit it is of.
        """
        known = asdict(self)
        for changes in ("free_bytes", "linux", "algorun", "commit"):
            known.pop(changes)
        return known | {"names": list(self.names)}

    def __str__(self) -> str:
        if not self.on_gpu:
            return f"the CPU of this machine, no GPU; torch {self.torch}, {self._rest()}"
        kinds = {name: self.names.count(name) for name in self.names}
        devices = ", ".join(f"{count} x {name}" for name, count in kinds.items())
        memory = f"{self.memory_bytes / 2**30:.1f} GiB, {self.free_bytes / 2**30:.1f} free"
        software = f"driver {self.driver}, torch {self.torch}, CUDA {self.cuda}, NCCL {self.nccl}"
        return f"{devices} ({memory}); {software}, {self._rest()}"

    def _rest(self) -> str:
        return f"transformers {self.transformers}, Python {self.python}, Linux {self.linux}, algorun {self.algorun}"


def refuse_without_gpu(folders: list[str], root: str = "") -> None:
    """Says at once, without torch's import, why there can be no GPU. Raises UserError. `root` as in algorun.machine.probe."""
    if not nvidia.look({}, root).devices and not os.path.exists(
        f"{root}/dev/dxg"
    ):  # the Linux inside Windows has the latter
        raise _error("there is no NVIDIA GPU on this machine (/dev/nvidia*)", "run it on a machine with one")
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        raise _error("CUDA_VISIBLE_DEVICES is empty, which hides all GPUs", "unset CUDA_VISIBLE_DEVICES")
    built_with = probe.torch_cuda(folders)
    if built_with in ("", probe.NO_CUDA):
        what = "is built without CUDA" if built_with else "is not installed"
        raise _error(f"the torch of {sys.executable} {what}", FIX)


def look(python: Path, environ: dict[str, str], *, cpu: bool) -> Machine:
    """Asks torch in a process of its own: one that holds a GPU would take memory from the checks. Raises UserError."""
    argv = [str(python), "-I", "-m", "tests.gpu.programs.look"]
    try:
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=LOOK_S, check=False)
    except subprocess.TimeoutExpired:
        raise _error(f"torch did not answer within {LOOK_S:g} s", "look at `nvidia-smi`") from None
    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise _error(f"torch cannot be asked ({last})", FIX)
    seen = json.loads(done.stdout.splitlines()[-1])
    if not cpu and not seen["names"]:
        raise _error(f"torch {seen['torch']} sees no GPU: {seen['why']}", "algorun doctor says what is missing")
    return Machine(
        kind="cpu" if cpu else "cuda",
        names=tuple(seen["names"]),
        memory_bytes=seen["memory_bytes"],
        free_bytes=seen["free_bytes"],
        driver=nvidia.look({}).driver or _said(*DRIVER) or "unknown",
        torch=seen["torch"],
        cuda=seen["cuda"],
        nccl=seen["nccl"],
        transformers=seen["transformers"],
        python=seen["python"],
        linux=platform.release(),
        algorun=__version__,
        commit=_commit(),
    )


def _error(what: str, fix: str) -> UserError:
    return UserError("gpu-test", what, fix=fix, code=ExitCode.PREFLIGHT)


def _commit() -> str:
    """Such as `abc1234`, with a `+` where files of the packages differ from it; "" outside of a repository."""
    commit = _said("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    changed = _said("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no", "--", *map(str, PACKAGES))
    return f"{commit}{'+' if changed else ''}" if commit else ""


def _said(*argv: str) -> str:
    """The first line of a tool's output, "" where it is absent or fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""
