"""The user's code: where it comes from, and whether a host must fetch or install anything before it can start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from algorun.common import STAGE
from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

from .channels import Channel, placed
from .hyperparameter_groups import SUBMIT_DIRECTORY, PlatformKeys
from .paths import Paths

if TYPE_CHECKING:
    from urllib.parse import SplitResult

REQUIREMENTS = "requirements.txt"
SHOWN = 3  # files of the code folder in a message
OPTION, CODE_OPTION = SUBMIT_DIRECTORY, "--code"


@dataclass(frozen=True, slots=True)
class Environments:
    """Where environments of jobs lie, for a job whose interpreter is not its own. `job` differs between two jobs, not between
    the hosts of one; `option` names the folder in errors."""

    folder: str
    job: str
    option: str


@dataclass(frozen=True, slots=True)
class Setup:
    """The preparation of a host, as in AWS's sagemaker-training.

    The code is fetched from `uri` into the folder `code`, unless that has files already. Then `requirements.txt` is
    installed, and the code itself if it is a package. Last the archives in the folders of `extract` are unpacked.
    """

    uri: str  # s3://, file://, a folder or a tar file
    code: str  # "" without code to fetch or install
    program: str
    region: str = ""  # of S3
    extract: tuple[Channel, ...] = ()
    option: str = OPTION  # what names `uri`, for errors
    environments: Environments | None = None  # None: into this interpreter's own environment, as in a container


def named_source(
    platform: PlatformKeys, environ: Mapping[str, str], paths: Paths, program: str, *, named: str = ""
) -> Setup:
    """Where the job's code comes from. `named`: the address that --code gives, "" without this option. A path below /opt/ml
    lies below SAGEMAKER_BASE_DIR."""
    uri, option = (placed(named, paths.base), CODE_OPTION) if named else (platform.submit_directory, OPTION)
    region = environ.get("AWS_REGION") or environ.get("SAGEMAKER_REGION") or platform.region or ""
    return Setup(uri, str(paths.code), program, region, option=option)


def needed(setup: Setup) -> Setup | None:
    """The preparation that this host needs, None if the program can start at once. Raises UserError on a wrong address."""
    code = Path(setup.code)
    if not has_files(code):
        if not (setup.uri and setup.program):
            return None
        address(setup.uri, setup.option)
        return setup
    return setup if has_requirements(code) or is_package(code, setup.program) else None


def address(uri: str, option: str = OPTION) -> SplitResult:
    """The parsed address of the code. Raises UserError on an address that is not supported.

    The error does not show the address, because it may contain a signature or a password.
    """
    from urllib.parse import urlsplit  # imported late: most jobs do not use it

    allowed = "s3://, file:// or a path"
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise UserError(option, f"is not an address: {error}", allowed=allowed) from None
    if parts.scheme not in ("", "file", "s3"):
        raise UserError(option, f"has the scheme {parts.scheme!r}", allowed=allowed)
    if parts.scheme == "s3" and "@" in parts.netloc:
        raise UserError(option, "contains credentials", allowed="s3://bucket/key", fix="give the job a role")
    return parts


def has_files(folder: Path) -> bool:
    """True if the folder exists and holds files of the user, all of them: no preparation works there, or was killed."""
    try:
        staged = [item.name.startswith(STAGE) for item in os.scandir(folder)]
    except OSError:
        return False
    return bool(staged) and not any(staged)


def has_requirements(code: Path) -> bool:
    """True if the code has a requirements.txt. Raises UserError if what has this name cannot be read as a file."""
    path = code / REQUIREMENTS
    if path.is_file():
        return True
    if os.path.lexists(path):
        what = f"is a link to {os.readlink(path)}, which is not there" if path.is_symlink() else "is a folder"
        raise UserError(str(path), what, allowed="a file", fix="make it a file, or remove it")
    return False


def passed_over(setup: Setup) -> str:
    """Says that the code at the address is not fetched, because the folder has files; "" if it has none, or is the address."""
    code = Path(setup.code)
    if not setup.uri or not has_files(code):
        return ""
    shown_uri = repr(setup.uri)
    try:
        parts = address(setup.uri, setup.option)
        if parts.scheme in ("", "file") and os.path.realpath(parts.netloc + parts.path) == os.path.realpath(code):
            return ""
    except (UserError, ValueError):  # it may hold a password, and nobody needs it here; or no path can have this name
        shown_uri = "its address"
    names = sorted(entry.name for entry in os.scandir(code))
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    return (
        f"{setup.option}: {shown_uri} is not fetched: {code} has files already ({shown}), and they count more; "
        "fix: an image without files there, or a job without this address"
    )


def is_package(code: Path, program: str) -> bool:
    """True if the code must be installed and run as `python -m`.

    As under sagemaker-training: it has a setup.py, and the program is not a shell script. Also: it has a pyproject.toml
    that describes a package, and the program is not a file beside it. (Many projects have a pyproject.toml only for the
    settings of a formatter.)
    """
    if not program or program.endswith(".sh"):
        return False
    if os.path.isfile(code / "setup.py"):
        return True
    if os.path.exists(code / program):  # Path.exists() raises ValueError on impossible names (a zero byte)
        return False
    import tomllib  # imported late: most jobs do not use it

    try:
        table = tomllib.loads((code / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return "project" in table or "build-system" in table
