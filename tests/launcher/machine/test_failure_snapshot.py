"""The kernel's figures, in made-up /proc and /sys trees of both cgroup versions."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from algorun.machine import failure_snapshot
from algorun.machine.failure_snapshot import Snapshot

GIB = 1024**3
V1 = {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n",
      "memory.max_usage_in_bytes": "{peak}\n", "memory.limit_in_bytes": "{limit}\n"}  # fmt: skip
V2 = {"memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill {kills}\noom_group_kill 0\n",
      "memory.peak": "{peak}\n", "memory.max": "{limit}\n"}  # fmt: skip


class Tree:
    """A machine of files: where its memory cgroup lies, and what /proc/self/cgroup says of it."""

    def __init__(self, root: Path, files: dict[str, str], folder: str, told: str) -> None:
        self.root, self._files, self._folder = str(root), files, root / folder.lstrip("/")
        self._write(root / "proc/self/cgroup", told)
        self._write(root / "proc/meminfo", f"MemTotal:       {16 * 1024**2} kB\n")
        self.machine(0)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def machine(self, kills: int) -> None:
        self._write(Path(self.root) / "proc/vmstat", f"pgfault 3\noom_kill {kills}\n")

    def cgroup(self, kills: int, peak: int = 0, limit: str = "max") -> None:
        for name, text in self._files.items():
            self._write(self._folder / name, text.format(kills=kills, peak=peak, limit=limit))


@pytest.mark.parametrize(
    ("files", "folder", "told"),
    [
        (V1, "/sys/fs/cgroup/memory/docker/ab", "4:memory:/docker/ab\n0::/docker/ab\n"),
        (V1, "/sys/fs/cgroup/memory", "4:memory:/docker/ab\n0::/docker/ab\n"),  # inside: the mount is the cgroup
        (V2, "/sys/fs/cgroup/system.slice/job.scope", "0::/system.slice/job.scope\n"),
        (V2, "/sys/fs/cgroup", "0::/\n"),  # a cgroup namespace of its own
    ],
)
def test_a_kill_for_memory_is_counted_from_the_snapshot(files, folder, told, tmp_path):
    tree = Tree(tmp_path, files, folder, told)
    tree.cgroup(kills=3, peak=GIB, limit=str(8 * GIB))
    before = failure_snapshot.snapshot(tree.root)
    assert before == Snapshot(3, of_machine=False)
    tree.machine(9)  # others on this machine are none of our concern
    assert failure_snapshot.look(before, (), tree.root).oom_kills == 0
    tree.cgroup(kills=4, peak=8 * GIB - 4096, limit=str(8 * GIB))
    found = failure_snapshot.look(before, (), tree.root)
    assert (found.oom_kills, found.peak_bytes, found.limit_bytes) == (1, 8 * GIB - 4096, 8 * GIB)


@pytest.mark.parametrize(("files", "limit"), [(V1, str(2**63 - 4096)), (V2, "max")])
def test_without_a_limit_it_is_the_machines_memory(files, limit, tmp_path):
    folder = "/sys/fs/cgroup/memory" if files is V1 else "/sys/fs/cgroup"
    tree = Tree(tmp_path, files, folder, "4:memory:/\n0::/\n")
    tree.cgroup(kills=0, peak=GIB, limit=limit)
    assert failure_snapshot.look(failure_snapshot.snapshot(tree.root), (), tree.root).limit_bytes == 16 * GIB


@pytest.mark.parametrize("told", ["0::/\n", "", "0::/../../escape\n"])
def test_where_the_cgroup_says_nothing_the_whole_machine_is_asked(told, tmp_path):
    tree = Tree(tmp_path, {}, "/sys/fs/cgroup", told)
    before = failure_snapshot.snapshot(tree.root)
    assert before == Snapshot(0, of_machine=True)
    tree.machine(1)
    found = failure_snapshot.look(before, (), tree.root)
    assert (found.oom_kills, found.peak_bytes, found.limit_bytes) == (1, 0, 16 * GIB)


def test_a_kernel_that_does_not_count_by_cgroup(tmp_path):
    """Before 4.13, memory.oom_control has no oom_kill."""
    files = {**V1, "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}
    tree = Tree(tmp_path, files, "/sys/fs/cgroup/memory", "4:memory:/\n")
    tree.cgroup(kills=0, peak=GIB, limit=str(8 * GIB))
    assert failure_snapshot.snapshot(tree.root).of_machine


def test_what_the_kernel_killed_before_the_attempt_does_not_count(tmp_path):
    tree = Tree(tmp_path, V1, "/sys/fs/cgroup/memory", "4:memory:/\n")
    tree.cgroup(kills=5, peak=GIB, limit=str(8 * GIB))
    assert failure_snapshot.look(None, (), tree.root).oom_kills == 0


def test_nothing_at_all_is_no_evidence(tmp_path):
    found = failure_snapshot.look(failure_snapshot.snapshot(str(tmp_path)), (), str(tmp_path))
    assert (found.oom_kills, found.peak_bytes, found.limit_bytes) == (0, 0, 0)


def test_this_machine_and_its_folders(tmp_path):
    found = failure_snapshot.look(
        failure_snapshot.snapshot(), [str(tmp_path), str(tmp_path), str(tmp_path / "not" / "yet")]
    )
    assert found.limit_bytes > 0
    assert found.shm.size_bytes == os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    assert [each.path for each in found.folders] == [str(tmp_path), str(tmp_path / "not" / "yet")]
    assert all(each.writable and each.size_bytes for each in found.folders)


def test_a_snapshot_costs_a_start_next_to_nothing():
    seconds = []
    for _ in range(50):
        begin = time.perf_counter()
        failure_snapshot.snapshot()
        seconds.append(time.perf_counter() - begin)
    assert sorted(seconds)[25] < 0.001
