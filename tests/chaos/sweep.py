"""Removes what runs of this suite have left that were killed: a run that lives is left alone."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from . import cgroup
from .network import ip, namespaces

OURS = re.compile(r"algorun-chaos-(\d+)-")


def _stale(name: str) -> bool:
    match = OURS.match(name)
    return match is not None and not os.path.exists(f"/proc/{match[1]}")


def sweep() -> list[str]:
    """Control groups with all their processes, mounts, namespaces; returns their names."""
    groups = [name for name in cgroup.names() if _stale(name)]
    for name in groups:
        cgroup.Cgroup(name).remove()
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for source, target, *_ in mounts:
        if _stale(f"{source}-"):
            subprocess.run(["umount", target], check=True, timeout=30)
    networks = [name for name in namespaces() if _stale(name)]
    for name in networks:
        ip("netns", "delete", name)
    return groups + networks
