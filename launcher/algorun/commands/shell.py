"""`algorun shell`: a shell on a host that is held after a failure, with the environment and the folder of a rank.

With a job and a host algorun_client finds the way to the host; on the host, this is what it starts there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass
from algorun.common.plain_text import plain
from algorun.common.systems import need_linux
from algorun.job.paths import Paths
from algorun.job.settings import HELD_COMMAND, HOLD_S

OWN = ("TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "SSH_TTY")  # variables of whoever looks, not of the job
FIX = (
    f"{HOLD_S.name}=1800 in the job's environment, or submit --hold-on-failure 30m, keeps the hosts of a job that fails"
)


@dataclass(frozen=True, slots=True)
class HeldHost:
    """A host that is held: the process that stands for a rank, and its variables."""

    host: str
    rank: int | None
    until: float  # seconds since 1970
    pid: int
    environ: Mapping[str, str]


def run(folder: str, environ: Mapping[str, str]) -> int:
    """Replaces this process by the shell. `folder`: of the host, "" for this host's own /opt/ml. Raises UserError."""
    need_linux("algorun shell")
    paths = Paths(Path(folder)) if folder else Paths.of(environ)
    held = _read(paths)
    _say(held, paths)
    own = {name: environ[name] for name in OWN if name in environ}
    prompt = f"{held.host}{'' if held.rank is None else f' rank {held.rank}'}$ "
    made = {**held.environ, **own, "PS1": prompt}
    program = shutil.which("bash", path=made.get("PATH"))
    argv = [program, "--norc", "--noprofile"] if program else ["/bin/sh"]
    words = [*_entering(held), *argv]
    if words == argv:
        os.chdir(f"/proc/{held.pid}/cwd")
        os.chdir(os.getcwd())
    sys.stdout.flush()
    os.execve(words[0], words, made)


def _read(paths: Paths) -> HeldHost:
    where = str(paths.base)
    if not paths.base.is_dir():
        raise UserError(
            "shell", f"{where!r} is no folder", allowed="that of a simulated host, or a job and its host",
            fix=f"algorun shell {where} algo-1, if {where} is a job",
        )  # fmt: skip
    try:
        found = json.loads(paths.held.read_text(encoding="utf-8"))
        host, rank, until, pid = str(found["host"]), found["rank"], float(found["until"]), int(found["pid"])
    except FileNotFoundError:
        raise UserError("shell", f"the host of {where} is not held", fix=FIX) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError("shell", f"{paths.held} cannot be read: {error}", fix="run it as the job's user") from None
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        raise UserError(
            "shell", f"process {pid} is another user's", fix="run it as the job's user, or with sudo"
        ) from None
    except OSError:
        raise UserError("shell", f"{host} is not held any more", fix=FIX) from None
    pairs = [each.partition("=") for each in environ.decode("utf-8", "surrogateescape").split("\0") if "=" in each]
    variables = {name: value for name, _, value in pairs}
    if HELD_COMMAND.name not in variables:  # a stranger has the number of a process that was killed with its launcher
        raise UserError("shell", f"{host} is not held any more", fix=FIX)
    return HeldHost(host, rank if isinstance(rank, int) else None, until, pid, variables)


def _say(held: HeldHost, paths: Paths) -> None:
    left = time.strftime("%H:%M:%S", time.gmtime(held.until))
    whose = held.host if held.rank is None else f"rank {held.rank} on {held.host}"
    lines = [f"the environment of {whose}, whose command is in ${HELD_COMMAND.name}; the host is held until {left} UTC"]
    try:
        lines.append(plain(paths.failure.read_text(encoding="utf-8", errors="replace").split("\n", 1)[0]))
    except OSError:
        pass
    for line in lines:
        print(f"algorun: {line}", file=sys.stderr)


def _entering(held: HeldHost) -> list[str]:
    """The words that lead into the host's own /opt/ml: simulated hosts have one each on one machine. Raises UserError."""
    apart = [kind for kind in ("user", "mnt") if _differs(held.pid, kind)]
    if not apart:
        return []
    program = shutil.which("nsenter")
    if program is None:
        raise UserError("shell", "there is no program nsenter on PATH", fix="apt-get install util-linux")
    options = {"user": ("--user", "--preserve-credentials"), "mnt": ("--mount",)}
    return [program, "--target", str(held.pid), *(word for kind in apart for word in options[kind]), "--wd", "--"]


def _differs(pid: int, kind: str) -> bool:
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return False
