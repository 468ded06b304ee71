"""/opt/ml for each simulated host: a mount namespace in which the host's own tree lies there.

A script with /opt/ml/checkpoints written into it works on SageMaker. On one machine all hosts, and all jobs, would share that
folder: a later job resumed from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from .fast_dataclasses import dataclass
from .process_limit import cannot_start

OPT, PLACE = "/opt", "/opt/ml"
NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
READ_ONLY, REMOUNT = 1, 32  # MS_RDONLY, MS_REMOUNT
KEPT = 2 | 4 | 8  # MS_NOSUID, MS_NODEV, MS_NOEXEC, which statvfs calls the same
BIND, RECURSIVE, FOLLOW = 4096, 16384, 1 << 19  # MS_BIND, MS_REC, MS_SLAVE: what the machine mounts later arrives
MOST, LARGEST = 100, 2**20  # files of a program that are looked at, and bytes of each


@dataclass(frozen=True, slots=True)
class Bind:
    """A folder that is seen at another place too."""

    source: Path
    target: Path  # an empty folder
    read_only: bool


def mount(base: Path, binds: Iterable[Bind] = ()) -> Callable[[], None]:
    """A `preexec_fn`: from here on /opt/ml is `base` for the process and all that it starts. Raises OSError.

    `binds`: folders that lie below `base` then.

    As root it needs CAP_SYS_ADMIN, which Docker does not give; without root a user namespace, in which the same user has the
    same number.
    """
    made = tuple(binds)
    libc = ctypes.CDLL(None, use_errno=True)  # nothing is loaded between fork and exec
    user, group, is_root = os.getuid(), os.getgid(), os.geteuid() == 0

    def call(result: int, what: str) -> None:
        if result:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    def bind(source: str, target: str) -> None:
        call(libc.mount(os.fsencode(source), os.fsencode(target), None, BIND | RECURSIVE, None), f"mount {target}")

    def enter() -> None:
        call(libc.unshare(NEW_MOUNTS | (0 if is_root else NEW_USER)), "unshare")
        if not is_root:
            maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
            for name, text in maps.items():
                Path("/proc/self", name).write_text(text)
        call(libc.mount(b"none", b"/", None, RECURSIVE | FOLLOW, None), "mount /")
        if not os.path.isdir(PLACE):
            # It must not appear on the machine itself: a new /opt gets it, and all that the old one has.
            kept = [(entry.name, os.open(entry.path, os.O_PATH | os.O_NOFOLLOW)) for entry in os.scandir(OPT)]
            call(libc.mount(b"none", OPT.encode(), b"tmpfs", 0, b"mode=755"), f"mount {OPT}")
            for name, handle in kept:
                _again(f"{OPT}/{name}", handle, bind)
            os.mkdir(PLACE)
        for each in made:
            bind(str(each.source), str(each.target))
            if each.read_only:
                # What the machine's own mount forbids, this one has to forbid too: the kernel lets no namespace drop it.
                wanted = REMOUNT | BIND | READ_ONLY | (os.statvfs(each.target).f_flag & KEPT)
                call(libc.mount(None, os.fsencode(each.target), None, wanted, None), f"mount {each.target} read-only")
        bind(str(base), PLACE)
        os.chdir(os.getcwd())  # a folder below /opt is another mount now

    return enter


def _again(path: str, handle: int, bind: Callable[[str, str], None]) -> None:
    """Puts an entry of the old /opt into the new one."""
    kind = os.fstat(handle).st_mode
    if stat.S_ISLNK(kind):
        os.symlink(os.readlink("", dir_fd=handle), path)
    else:
        if stat.S_ISDIR(kind):
            os.mkdir(path)
        else:
            Path(path).touch()
        bind(f"/proc/self/fd/{handle}", path)
    os.close(handle)


def why_shared(base: Path, used: Iterable[str]) -> str:
    """Why hosts share this machine's /opt/ml; "" if each can have its own. `used`: paths that the job itself needs."""
    for path in used:
        if f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(PLACE)}/"):
            return f"{path} lies there"
    return _tried(mount(base)) if os.path.isdir(OPT) else f"there is no {OPT}"


def _tried(enter: Callable[[], None]) -> str:
    """What the kernel says to it, in a process that ends at once. Raises UserError where no further process can start."""
    reader, writer = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise cannot_start("simulate") from None
    if not child:
        text = "it fails"
        try:
            enter()
            text = ""
        except OSError as error:
            text = str(error.args[-1])
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text


def named_in(program: str, folder: str) -> str:
    """A file with /opt/ml written into it: the program itself, or one beside it; "" without one."""
    with contextlib.suppress(OSError):
        beside = sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith((".py", ".sh")))
        for path in [os.path.join(folder, program), *beside][:MOST]:
            with contextlib.suppress(OSError):
                if stat.S_ISREG(os.stat(path).st_mode) and f"{PLACE}/".encode() in Path(path).read_bytes()[:LARGEST]:
                    return os.path.relpath(path, folder)
    return ""
