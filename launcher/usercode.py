"""The user's code: where it comes from, and what must happen on a host before it can start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import hyperparameters as hp
from .paths import Paths

REQUIREMENTS = "requirements.txt"


@dataclass(frozen=True, slots=True)
class Setup:
    """What a host does before its program can start, as AWS's sagemaker-training does it.

    Code is fetched from `uri` (s3://, file://, a folder, a tar file) into the folder `code` unless that holds files
    already; then `requirements.txt` and, where the code is a package, the package itself are installed.
    """

    uri: str
    code: str
    program: str
    region: str = ""


def wished(raw: Mapping[str, object], environ: Mapping[str, str], paths: Paths, program: str) -> Setup | None:
    """The preparation that this job needs here, None where its program could start at once."""
    uri = hp.text(raw, "sagemaker_submit_directory")
    region = environ.get("AWS_REGION") or environ.get("SAGEMAKER_REGION") or hp.text(raw, "sagemaker_region")
    setup = Setup(uri, str(paths.code), program, region)
    if not has_files(paths.code):
        return setup if uri and program else None
    return setup if (paths.code / REQUIREMENTS).is_file() or is_package(paths.code, program) else None


def has_files(folder: Path) -> bool:
    """True if the folder is there and not empty."""
    try:
        return any(True for _ in os.scandir(folder))
    except OSError:
        return False


def is_package(code: Path, program: str) -> bool:
    """True where the code is to be installed and run as `python -m`.

    A setup.py decides, as under sagemaker-training, but not over a shell script. A pyproject.toml decides where it
    describes a package and the program is no file beside it: many projects keep only a formatter's settings there.
    """
    if not program or program.endswith(".sh"):
        return False
    if (code / "setup.py").is_file():
        return True
    if (code / program).exists():
        return False
    import tomllib  # few jobs need it

    try:
        table = tomllib.loads((code / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "project" in table or "build-system" in table
