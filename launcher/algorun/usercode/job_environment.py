"""The environment of a job that runs on somebody's own machine: its requirements are installed there, never into the user's.

In a container the interpreter is the job's own, and pip installs into it. On a machine of the user's the setting
ALGORUN_ENVIRONMENTS names a folder of environments. All hosts of a job, and all jobs with the same requirements, share one:

    FOLDER/KEY/1f0c../    the environment, which lies where it was made: programs in it hold its path
    FOLDER/KEY/made.json  which one is complete, its size and what it was made for

Whoever makes one holds the lock of FOLDER/KEY. A host that uses it holds the same lock with others, until it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass
from algorun.job.own_environment import python_of, variables
from algorun.job.paths import write_aside
from algorun.job.usercode import REQUIREMENTS, Environments, has_requirements

from . import layered_venv
from .requirement_files import contents

FORMAT = 1  # of the folders; another one makes all environments anew
MADE = "made.json"
MOST_BYTES = 20 * 1024**3  # of all environments: four with a torch of CUDA. Those in use may hold more.
# Where pip looks for packages. An index with other builds of the same versions makes another environment.
SOURCES = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE", "PIP_CONSTRAINT"),
    *("PIP_PRE", "PIP_NO_DEPS", "PIP_NO_BINARY", "PIP_ONLY_BINARY", "CA_REPOSITORY_ARN"),
)
# Variables that send packages elsewhere. layered_venv.py takes care of pip's configuration files.
ELSEWHERE = (
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
    "PIP_PYTHON",
    "PIP_DRY_RUN",
    "PYTHONHOME",
    "PYTHONPATH",
)


@dataclass(frozen=True, slots=True)
class Code:
    """A job's code. `package`: pip installs the code itself as well."""

    folder: Path
    package: bool

    @property
    def requirements(self) -> str:
        """The path of its requirements.txt, "" without one."""
        return str(self.folder / REQUIREMENTS) if has_requirements(self.folder) else ""


def environment_of(
    code: Code,
    environments: Environments,
    environ: Mapping[str, str],
    install: Callable[[str, Mapping[str, str]], None],
    say: Callable[[str], None],
) -> str:
    """The folder of the environment that has what this code requires; `install` (with the interpreter and the variables for pip)
    makes it if none has. Raises UserError."""
    key, bound_to = _key(code, environments, environ)
    folder = f"{environments.folder}/{key}"
    try:
        with _locked(folder, say) as is_locked:
            if found := _complete(folder):
                os.utime(f"{folder}/{MADE}")  # used now
                say(f"the requirements are installed in {found}")
                return found
            if is_locked:
                _clear(folder)
            new = f"{folder}/{uuid.uuid4().hex[:12]}"
            say(f"making an environment of the job in {new}, over {sys.prefix}")
            try:
                _make(new, environ, install)
                about = {"environment": os.path.basename(new), "bytes": _bytes(new), "bound_to": bound_to}
                write_aside(Path(folder, MADE), json.dumps(about))
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
        prune(environments.folder, keep=folder)
        return new
    except OSError as error:
        fix = f"make room there, or set {environments.option} to a folder in which you may write"
        raise UserError(folder, f"no environment can be made: {error.strerror or error}", fix=fix) from None


def _make(new: str, environ: Mapping[str, str], install: Callable[[str, Mapping[str, str]], None]) -> None:
    layered_venv.make(new, environ)
    if not layered_venv.has_pip(new) and not layered_venv.bring_pip(new):
        raise UserError(
            "pip",
            f"is not installed in {sys.prefix}, and Python has none to bring",
            fix=_way_to_pip(),
        )
    kept = {name: value for name, value in environ.items() if name not in ELSEWHERE}
    install(python_of(new), {**kept, **variables(new, environ)})
    layered_venv.bring_programs(new, environ)


def _way_to_pip() -> str:
    """How this interpreter gets a pip, by what has installed it."""
    if os.path.isdir(f"{sys.prefix}/conda-meta"):
        return f"conda install --prefix {sys.prefix} pip"
    if sys.prefix != sys.base_prefix:
        return f"uv pip install --python {sys.executable} pip, or apt install python3-venv"
    return "apt install python3-venv"  # Debian refuses to let others write into its own folders (PEP 668)


def _key(code: Code, environments: Environments, environ: Mapping[str, str]) -> tuple[str, str]:
    """A name, the same for two jobs that may share an environment; and the folder to which the environment is bound, "" if to
    none: `pip install -e` links to it."""
    found = contents(code.requirements, str(code.folder), environ, package=code.package)
    bound_to = os.path.realpath(code.folder) if found.editable else ""
    parts = [
        *(str(FORMAT), sys.version, sys.prefix, sys.base_prefix, os.path.realpath(sys.executable)),
        *(f"{name}={environ.get(name, '')}" for name in SOURCES),
        *layered_venv.installed_below(environ),
        found.digest,
        bound_to,
        environments.job if found.moving else "",
    ]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16], bound_to


@contextlib.contextmanager
def _locked(folder: str, say: Callable[[str], None]) -> Iterator[bool]:
    """Makes the folder, and waits while another process makes an environment in it. False where the file system has no locks.
    ALGORUN_PREPARE_S limits the wait."""
    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            is_locked = _lock(folder, handle, say)
            if _is_still(folder, handle):
                yield is_locked
                return
        finally:
            os.close(handle)


def _lock(folder: str, handle: int, say: Callable[[str], None]) -> bool:
    # Hosts that use a complete environment share its lock, for as long as they run.
    kind = fcntl.LOCK_SH if _complete(folder) else fcntl.LOCK_EX
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for the environment that another host or job makes in {folder}")
        fcntl.flock(handle, kind)
    except OSError:
        return False
    return True


def _is_still(folder: str, handle: int) -> bool:
    """False if the folder has been removed while this process waited for its lock."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(handle))
    except FileNotFoundError:
        return False


def _about(folder: str) -> dict[str, object]:
    """What `made.json` says, {} where nothing is complete."""
    try:
        with open(f"{folder}/{MADE}", encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _complete(folder: str) -> str:
    """The environment of this folder, "" if it has none whose interpreter is there."""
    name = _about(folder).get("environment")
    found = f"{folder}/{name}" if isinstance(name, str) and name else ""
    return found if found and os.path.exists(python_of(found)) else ""


def _clear(folder: str) -> None:
    """Removes what a killed process has left."""
    for each in os.scandir(folder):
        if each.is_dir(follow_symlinks=False):
            shutil.rmtree(each.path, ignore_errors=True)
        else:
            os.unlink(each.path)


def _bytes(folder: str) -> int:
    """The bytes that an environment takes."""
    total = 0
    for top, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(top, name)).st_size
    return total


def prune(root: str, keep: str) -> None:
    """Removes environments that nobody uses: what killed processes have left, those that are bound to a folder that is gone, then
    the longest unused ones above MOST_BYTES."""
    found = []
    for each in os.scandir(root):
        if each.path != keep and each.is_dir(follow_symlinks=False):
            try:
                found.append((os.stat(f"{each.path}/{MADE}").st_mtime, each.path))
            except FileNotFoundError:
                _removed(each.path)
    total = sum(_size(folder) for folder in [keep, *(path for _, path in found)])
    for _, folder in sorted(found):
        bound_to, size = _about(folder).get("bound_to"), _size(folder)
        is_lost = isinstance(bound_to, str) and bound_to and not os.path.isdir(bound_to)
        if (is_lost or total > MOST_BYTES) and _removed(folder):
            total -= size


def _size(folder: str) -> int:
    size = _about(folder).get("bytes")
    return size if isinstance(size, int) else 0


def _removed(folder: str) -> bool:
    """Removes an environment, unless a host uses it."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/{MADE}")  # first: nobody may find half of it complete
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(handle)
