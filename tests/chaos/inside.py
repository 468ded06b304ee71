"""Becomes a host: `inside.py SETTINGS.json PROGRAM ..` enters control groups, mounts what is the host's own, executes.

Started in fresh mount, UTS and IPC namespaces (unshare) and in the host's network namespace (nsenter).
Settings: {"cgroups": [FOLDER], "hostname": NAME, "binds": [[SOURCE, TARGET]], "memlock": BYTES, "efa": BOOL}.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import sys
import time
from pathlib import Path

MS_BIND = 0x1000  # mount(2)
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    if LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} {target}: {os.strerror(number)}")


def handle(path: str) -> str:
    """The same file, whatever is mounted over its path later."""
    return f"/proc/self/fd/{os.open(path, os.O_PATH)}"


def efa() -> None:
    """/sys/class with a device efa_0 beside the network interfaces, its node in /dev, and NCCL's plugin for it."""
    interfaces = handle("/sys/class/net")
    mount("tmpfs", "/sys/class", "tmpfs")
    os.makedirs("/sys/class/infiniband/efa_0/device/infiniband_verbs/uverbs0")
    with open("/sys/class/infiniband/efa_0/device/vendor", "w") as file:
        file.write("0x1d0f\n")
    os.mkdir("/sys/class/net")
    mount(interfaces, "/sys/class/net", flags=MS_BIND)
    add_to_dev("infiniband/uverbs0")
    Path("/mnt/libnccl-net.so").touch()
    os.environ["NCCL_NET_PLUGIN"] = "/mnt/libnccl-net.so"


def add_to_dev(name: str) -> None:
    """A new /dev, which holds what the old one does and one file more: other hosts see the old one."""
    old = handle("/dev")
    mount("tmpfs", "/dev", "tmpfs")
    for each in map(Path, sorted(os.scandir(old), key=lambda entry: entry.name)):
        new = Path("/dev", each.name)
        if each.is_symlink():
            new.symlink_to(os.readlink(each))
            continue
        new.mkdir() if each.is_dir() else new.touch()
        mount(str(each), str(new), flags=MS_BIND)
    Path("/dev", name).parent.mkdir(exist_ok=True)
    Path("/dev", name).touch()


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    program = sys.argv[2:]
    for folder in settings["cgroups"]:
        Path(folder, "cgroup.procs").write_text("0")  # this process
    socket.sethostname(settings["hostname"])
    binds = [(handle(source), os.path.isdir(source), target) for source, target in settings["binds"]]
    mount("sysfs", "/sys", "sysfs")  # the one of this network namespace
    mount("tmpfs", "/sys/fs/cgroup", "tmpfs")
    mount("tmpfs", "/mnt", "tmpfs")
    for source, is_folder, target in binds:
        if is_folder:
            os.makedirs(target, exist_ok=True)
        mount(source, target, flags=MS_BIND)
    if settings["efa"]:
        efa()
    if settings["memlock"]:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (settings["memlock"],) * 2)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass
    os.chdir("/mnt/ml")
    Path(".started").write_text(repr(time.monotonic()))  # what this file took is no part of any measurement
    os.replace(".started", "started")
    os.execvp(program[0], program)


main()
