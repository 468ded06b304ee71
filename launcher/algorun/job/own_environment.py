"""A job's own environment on a machine of the user's (usercode/job_environment.py makes it), as its hosts use it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping


def python_of(environment: str) -> str:
    """The interpreter of an environment."""
    return f"{environment}/bin/python"


def variables(environment: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that works in an environment."""
    return {"VIRTUAL_ENV": environment, "PATH": f"{environment}/bin{os.pathsep}{environ.get('PATH', os.defpath)}"}


def hold(environment: str) -> int:
    """Keeps an environment from being removed, as long as the returned descriptor is open. Raises OSError."""
    handle = os.open(os.path.dirname(environment), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return handle
