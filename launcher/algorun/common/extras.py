"""What the optional parts of algorun import, and the command that brings it into the environment that lacks it."""

from __future__ import annotations

import re
import shlex
import sys

from .errors import UserError


def missing(command: str, name: str, extra: str) -> UserError:
    """The error of a command whose `extra` is not installed: the package `name` is not there."""
    return UserError(command, f"{name} is not installed", fix=install(extra, name))


def install(extra: str, name: str) -> str:
    """The command that installs what the extra needs into this interpreter's environment. algorun itself stays as it is: it may
    come from a checkout, a wheel or an image. `name`: what is known to be missing."""
    words = shlex.join(_requirements(extra) or [name])
    return f"{_installer()} {words}"


def _requirements(extra: str) -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        found = requires("algorun") or []
    except PackageNotFoundError:  # only its folders are on the path
        return []
    wanted = re.compile(rf"""(.+?)\s*;\s*extra\s*==\s*(['"]){re.escape(extra)}\2""")
    return [match[1].strip() for each in found if (match := wanted.fullmatch(each))]


def _installer() -> str:
    """pip of this interpreter; uv where it has none, as in an environment that uv has made."""
    from importlib.util import find_spec

    python = shlex.quote(sys.executable or "python3")
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
