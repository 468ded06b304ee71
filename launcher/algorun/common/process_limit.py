"""Why no further process or thread can start on this host: the limit that is reached, and the fix."""

from __future__ import annotations

import errno
import os

from .errors import ExitCode, UserError

CGROUP = "/sys/fs/cgroup"
NO_THREAD = "can't start new thread"  # Python's words, for whatever reason
OWN = 10  # processes and threads of the launcher itself on one host, at most


def is_limit(error: BaseException) -> bool:
    """True if a process or a thread could not start for want of numbers, not for want of a program."""
    if isinstance(error, RuntimeError):
        return NO_THREAD in str(error)
    return isinstance(error, OSError) and error.errno == errno.EAGAIN and error.filename is None


def cannot_start(what: str) -> UserError:
    """The error (exit code 69) for `what`, such as `the program`, after a call for which `is_limit` is true."""
    return UserError(
        what,
        f"cannot start: this host allows no further process or thread ({_limits()})",
        allowed=f"{OWN} for algorun on each host, and those of the program",
        fix="raise it (docker run --pids-limit 4096, or pids.max of the cgroup; ulimit -u), or start fewer processes and threads",
        code=ExitCode.PREFLIGHT,
    )


def _limits() -> str:
    """What limits the processes of this one, such as `pids.max of its cgroup is 2`."""
    limit, used = _of_cgroup()
    if limit and used >= limit - 1:  # one may have ended since
        return f"pids.max of its cgroup is {limit}"
    found = [f"pids.max of its cgroup is {limit}"] if limit else []
    import resource  # imported late: only a failure uses it

    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() and soft != resource.RLIM_INFINITY:
        found.append(f"ulimit -u of user {os.geteuid()} is {soft}")
    return ", ".join(found or [f"kernel.pid_max is {_number('/proc/sys/kernel/pid_max')}"])


def _of_cgroup() -> tuple[int, int]:
    """The smallest pids.max of the cgroups of this process, and how many processes and threads that one has; zeros without any."""
    found = [
        (limit, _number(f"{folder}/pids.current")) for folder in _folders() if (limit := _number(f"{folder}/pids.max"))
    ]
    return min(found, default=(0, 0))


def _folders() -> list[str]:
    """The cgroups of this process and those above. In a container the paths may be the machine's, which it cannot see."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        lines = []
    found = [CGROUP, f"{CGROUP}/pids"]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and "pids" not in controllers.split(","):
            continue
        base = f"{CGROUP}/{controllers}".rstrip("/")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        found += ["/".join([base, *parts[:count]]) for count in range(1, len(parts) + 1)]
    return found


def _number(path: str) -> int:
    """The number in a file of the kernel; 0 for `max`, and without the file."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
