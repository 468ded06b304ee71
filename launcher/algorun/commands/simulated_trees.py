"""The folder of a simulation: an /opt/ml tree for each host, and the trees of the runs before."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from algorun.common.errors import ExitCode, UserError
from algorun.common.written import is_generated, mark
from algorun.job.paths import Paths, write_aside
from algorun.outcome import report

KEPT = 3  # earlier runs: previous-1 is the newest of them
LOCK = ".lock"
HOST = re.compile(r"algo-\d+")
CHECKPOINTS = "checkpoints"


@contextlib.contextmanager
def alone(out: Path) -> Iterator[int]:
    """Holds the folder, which it creates, for one simulation. Gives the lock's descriptor: hosts that inherit it hold the
    folder until they have ended, also if this process is killed. Raises UserError if another simulation runs there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _not_writable(out, error) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UserError(
            "--out", f"another simulation runs in {out}", fix="wait for its end, or name another folder"
        ) from None
    except OSError:
        pass  # a file system without locks
    try:
        yield handle
    finally:
        os.close(handle)


def prepare(
    out: Path, hosts: Sequence[str], inputs: Mapping[str, Path], *, resume: bool
) -> tuple[dict[str, Path], Path | None]:
    """The tree of each host, and where the run before is now; None if there was none. `resume`: the checkpoints of the run
    before are those of this one. Raises UserError."""
    try:
        earlier = _move_aside(out, resume=resume)
        mark(out, [*hosts, LOCK])
        return {host: _tree(out / host, host, hosts, inputs) for host in hosts}, earlier
    except OSError as error:
        raise _not_writable(out, error) from None


def _not_writable(out: Path, error: OSError) -> UserError:
    return UserError("--out", f"{out}: {error.strerror}", fix="name a folder in which you may write")


def _move_aside(out: Path, *, resume: bool) -> Path | None:
    trees = [path for path in out.iterdir() if HOST.fullmatch(path.name)]
    for path in trees:
        if not _is_tree(path):
            raise UserError("--out", f"{path} is not of a simulation", fix="name another folder, or move it away")
    if not trees:
        return None
    import shutil  # 2 ms, which a first simulation need not wait for

    if all(map(_is_nothing, trees)):  # a wrong option must not cost one of the runs that are kept
        for path in trees:
            shutil.rmtree(path)
        return None
    places = [out / f"previous-{number}" for number in range(1, KEPT + 1)]
    shutil.rmtree(places[-1], ignore_errors=True)
    for older, newer in zip(reversed(places), reversed(places[:-1]), strict=False):
        if newer.exists():
            newer.rename(older)
    mark(out, [path.name for path in places])
    for path in trees:
        kept = places[0] / path.name
        kept.mkdir(parents=True)
        for part in path.iterdir():
            if not (resume and part.name == CHECKPOINTS):
                part.rename(kept / part.name)
        with contextlib.suppress(OSError):  # checkpoints that stay
            path.rmdir()
    for path in out.iterdir():
        if path.is_file() and is_generated(path):
            path.rename(places[0] / path.name)
    return places[0]


def _is_tree(path: Path) -> bool:
    """True for the tree of a simulated host. One that a later run with fewer hosts did not use has its checkpoints alone; one that
    was never finished has no file."""
    if Paths(path).resourceconfig.is_file():
        return True
    if not path.is_dir():
        return False
    others = [part for part in path.iterdir() if part.name != CHECKPOINTS]
    found = (name for part in others for _, _, names in os.walk(part) for name in names)
    return all(part.is_dir() for part in others) and all(name.startswith(".") for name in found)  # written aside


def _is_nothing(tree: Path) -> bool:
    """True if the run was refused before it began, and left nothing."""
    paths = Paths(tree)
    left = [path for folder in (paths.model, paths.checkpoints) if folder.is_dir() for path in folder.iterdir()]
    return not left and report.read_result(paths).get("code") == ExitCode.CONFIGURATION


def _tree(base: Path, host: str, hosts: Sequence[str], inputs: Mapping[str, Path]) -> Path:
    paths = Paths(base)
    resources = {"current_host": host, "hosts": list(hosts), "network_interface_name": "lo"}
    described = {name: {"TrainingInputMode": "File"} for name in inputs}
    write_aside(paths.resourceconfig, json.dumps(resources))
    write_aside(paths.hyperparameters, "{}")
    write_aside(paths.inputdataconfig, json.dumps(described))
    for folder in (paths.model, paths.output_data, paths.checkpoints, paths.input / "data"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, source in inputs.items():
        paths.channel(name).symlink_to(source, target_is_directory=True)
    return base
