"""Runs `algorun WORDS` in a Python without what only Linux has: `python -m tests.client.without_linux submit ..`.

Names that Python's documentation gives for Linux alone, or not for macOS, are removed from its modules before anything is
imported, and /proc and /sys are not there.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import io
import mmap
import os
import select
import signal
import socket
import sys
import time
import types
from typing import Any

GONE: dict[Any, tuple[str, ...]] = {
    os: (
        *("copy_file_range", "eventfd", "fdatasync", "getrandom", "getresuid", "memfd_create", "pidfd_open", "pipe2", "posix_fadvise"),
        *("posix_fallocate", "sched_getaffinity", "sched_getparam", "sched_setaffinity", "setns", "splice", "unshare", "waitid"),
        *("getxattr", "listxattr", "setxattr", "removexattr", "O_PATH", "O_TMPFILE", "O_DIRECT", "O_LARGEFILE", "O_NOATIME"),
        *("P_PIDFD", "WNOWAIT", "RWF_NOWAIT", "CLONE_NEWNS"),
    ),
    signal: ("sigwaitinfo", "sigtimedwait", "SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "pidfd_send_signal"),
    socket: (
        *("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "SO_BINDTODEVICE", "SO_PEERCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
        *("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_QUICKACK", "TCP_INFO", "MSG_NOSIGNAL", "IP_TRANSPARENT"),
    ),
    select: ("epoll", "EPOLLIN", "EPOLLOUT"),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
    mmap: ("MAP_POPULATE", "MAP_STACK"),
}  # fmt: skip
KERNEL = ("/proc", "/sys")


class NoLinux(ctypes.CDLL):
    """A C library without Linux's functions."""

    def __getattr__(self, name: str) -> Any:
        if name in ("prctl", "unshare", "setns", "mount", "umount2", "sched_getcpu"):
            raise AttributeError(f"dlsym: symbol not found: {name}")
        return super().__getattr__(name)


def take_away() -> None:
    sys.platform = "darwin"
    proxies = types.ModuleType("_scproxy")  # a part of Python on macOS, for urllib
    proxies.__dict__.update(_get_proxy_settings=dict, _get_proxies=dict)
    sys.modules["_scproxy"] = proxies
    for module, names in GONE.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    ctypes.CDLL = NoLinux  # type: ignore[misc]
    for module, name in (
        (builtins, "open"),
        (io, "open"),
        (os, "open"),
        (os, "listdir"),
        (os, "scandir"),
        (os, "readlink"),
        (os, "stat"),
    ):
        setattr(module, name, _without_the_kernel(getattr(module, name)))


def _without_the_kernel(real: Any) -> Any:
    def checked(path: Any = ".", *args: Any, **named: Any) -> Any:
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(KERNEL):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return real(path, *args, **named)

    return checked


if __name__ == "__main__":
    take_away()
    from algorun.cli import main

    sys.exit(main(sys.argv[1:]))
