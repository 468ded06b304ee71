"""The distributions beside `algorun`, and the command that brings what is missing into the environment that lacks it."""

from __future__ import annotations

import re
import shlex
import sys

from .errors import UserError

# Each is a folder of the clone. An index is never asked for their names (docs/decisions/005-four-distributions.md).
FOLDERS = {"algorun-train": "train", "algorun-client": "client", "algorun-smdistributed": "compat"}
PACKAGES = {
    "algorun_train": "algorun-train",
    "algorun_client": "algorun-client",
    "algorun_report": "algorun-client",
    "algorun_smdistributed": "algorun-smdistributed",
}


def missing(command: str, name: str, distribution: str) -> UserError:
    """The error of a command whose `distribution` is not installed, or not all of it: the package `name` is not there."""
    if name in PACKAGES:
        fix = f"{_installer()} ./{FOLDERS[PACKAGES[name]]}, in the clone of algorun that this one is from"
        return UserError(command, f"{PACKAGES[name]} is not installed", fix=fix)
    return UserError(command, f"{name} is not installed", fix=install(distribution, name))


def need(command: str, package: str) -> None:
    """Raises UserError if one of algorun's own packages is not installed."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise missing(command, package, PACKAGES[package])


def install(distribution: str, name: str) -> str:
    """The command that installs what the distribution needs into this interpreter's environment. algorun itself stays as it
    is: it may come from a checkout, a wheel or an image. `name`: what is known to be missing."""
    return f"{_installer()} {shlex.join(_requirements(distribution) or [name])}"


def install_extra(distribution: str, extra: str, name: str) -> str:
    """The command that installs what an extra of the distribution needs. `name`: what is known to be missing."""
    of_extra = re.compile(rf";.*\bextra\s*==\s*['\"]{extra}['\"]")
    found = [each.partition(";")[0].strip() for each in _all_requirements(distribution) if of_extra.search(each)]
    return f"{_installer()} {shlex.join(found or [name])}"


def _requirements(distribution: str) -> list[str]:
    return [each for each in _all_requirements(distribution) if not re.search(r";.*\bextra\b", each)]


def _all_requirements(distribution: str) -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires(distribution) or []
    except PackageNotFoundError:  # only its folders are on the path
        return []


def versions() -> dict[str, str]:
    """The version of each distribution of algorun that is installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("algorun", *FOLDERS):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _installer() -> str:
    """pip of this interpreter; uv where it has none, as in an environment that uv has made."""
    from importlib.util import find_spec

    python = shlex.quote(sys.executable or "python3")
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
