"""The user's code: where it comes from, and what must happen on a host before it can start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from algorun.errors import UserError

from .hyperparameter_groups import SUBMIT_DIRECTORY, PlatformKeys
from .paths import Paths

if TYPE_CHECKING:
    from urllib.parse import SplitResult

REQUIREMENTS = "requirements.txt"
STAGE = ".algorun-unpacking"  # begins the name of the folder, within the code folder, where code is made whole first
OPTION = SUBMIT_DIRECTORY


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


def wished(platform: PlatformKeys, environ: Mapping[str, str], paths: Paths, program: str) -> Setup | None:
    """The preparation that this job needs here, None where its program could start at once.

    Raises UserError on an address that code does not come from.
    """
    uri = platform.submit_directory
    region = environ.get("AWS_REGION") or environ.get("SAGEMAKER_REGION") or platform.region or ""
    setup = Setup(uri, str(paths.code), program, region)
    if not has_files(paths.code):
        if not (uri and program):
            return None
        address(uri)
        return setup
    return setup if (paths.code / REQUIREMENTS).is_file() or is_package(paths.code, program) else None


def address(uri: str) -> SplitResult:
    """The parts of an address of code. Raises UserError on one that code does not come from.

    The error does not show it: it may be signed, or hold a password. Nor does a command line, as no preparation starts.
    """
    from urllib.parse import urlsplit  # few jobs need it

    allowed = "s3://, file:// or a path"
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise UserError(OPTION, f"is no address: {error}", allowed=allowed) from None
    if parts.scheme not in ("", "file", "s3"):
        raise UserError(OPTION, f"has the scheme {parts.scheme!r}", allowed=allowed)
    if parts.scheme == "s3" and "@" in parts.netloc:
        raise UserError(OPTION, "holds credentials", allowed="s3://bucket/key", fix="give the job a role")
    return parts


def has_files(folder: Path) -> bool:
    """True if the folder is there and not empty. What a killed preparation left in it is not the user's."""
    try:
        return any(not item.name.startswith(STAGE) for item in os.scandir(folder))
    except OSError:
        return False


def is_package(code: Path, program: str) -> bool:
    """True where the code is to be installed and run as `python -m`.

    A setup.py decides, as under sagemaker-training, but not over a shell script. A pyproject.toml decides where it
    describes a package and the program is no file beside it: many projects keep only a formatter's settings there.
    """
    if not program or program.endswith(".sh"):
        return False
    if os.path.isfile(code / "setup.py"):
        return True
    if os.path.exists(code / program):  # Path's own raises on names that no file can have
        return False
    import tomllib  # few jobs need it

    try:
        table = tomllib.loads((code / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return "project" in table or "build-system" in table
