"""One control group for each host: all its processes at one place, to be counted, frozen, killed or short of memory."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

REMOVE_S = 5.0


def _mounted(kind: str, option: str = "") -> Path | None:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, target, found, options, *_ = line.split()
        if found == kind and (not option or option in options.split(",")):
            return Path(target)
    return None


def names() -> list[str]:
    """Names of all groups of this machine."""
    root = _mounted("cgroup2")
    return [folder.name for folder in root.iterdir() if folder.is_dir()] if root else []


class Cgroup:
    """A group of version 2, and one of version 1 for the memory where the machine still has its controller there."""

    def __init__(self, name: str, memory_bytes: int = 0) -> None:
        root = _mounted("cgroup2")
        assert root is not None, "no cgroup2 is mounted here"
        self.folder = root / name
        self._memory: Path | None = None
        self._limit_file = "memory.max"
        if memory_bytes:
            self._memory = self._with_memory(root, name)
        elif (first := _mounted("cgroup", "memory")) is not None and (first / name).exists():
            self._memory = first / name  # of a run that was killed
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
        if memory_bytes and self._memory is not None:
            (self._memory / self._limit_file).write_text(str(memory_bytes))

    def _with_memory(self, root: Path, name: str) -> Path:
        first = _mounted("cgroup", "memory")
        if first is not None:
            self._limit_file = "memory.limit_in_bytes"
            return first / name
        assert "memory" in (root / "cgroup.controllers").read_text().split(), "no memory controller for control groups"
        (root / "cgroup.subtree_control").write_text("+memory")
        return self.folder

    @property
    def folders(self) -> list[Path]:
        """Where a process has to enter."""
        return [self.folder] if self._memory in (None, self.folder) else [self.folder, self._memory]  # type: ignore[list-item]

    @property
    def as_seen_inside(self) -> tuple[Path, str] | None:
        """The memory group, and where a container has it: a launcher looks there for its limit."""
        if self._memory is None:
            return None
        return self._memory, "/sys/fs/cgroup/memory" if self._memory != self.folder else "/sys/fs/cgroup"

    def pids(self) -> list[int]:
        try:
            return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            return []

    def commands(self) -> list[str]:
        """Command lines of what lives here; zombies have none and are not listed."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                if words != [b""]:
                    found.append(b" ".join(words).decode(errors="replace"))
        return found

    def freeze(self, frozen: bool = True) -> None:
        (self.folder / "cgroup.freeze").write_text(str(int(frozen)))

    def kill(self) -> None:
        """SIGKILL to all at once, as when a container is killed."""
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """Ends what is left and removes the groups. AssertionError where the kernel does not let go in time."""
        self.kill()
        deadline = time.monotonic() + REMOVE_S
        for folder in self.folders:
            while folder.exists():
                try:
                    os.rmdir(folder)
                except OSError:
                    assert time.monotonic() < deadline, f"{folder} is still in use: {self.commands()}"
                    time.sleep(0.02)
