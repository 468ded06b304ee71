"""The watch for processes that the kernel kills for memory, in made-up /proc and /sys trees."""

from __future__ import annotations

from algorun.common.event_loop import Loop
from algorun.control.wire.messages import MemoryKill
from algorun.host.engines.ray.memory_watch import LOOK_S, MemoryWatch
from algorun.job.settings import BLAME_S
from algorun.machine import failure_snapshot
from tests.launcher.machine.test_failure_snapshot import GIB, V1, Tree


def test_each_kill_is_told_once_with_the_limit(tmp_path):
    tree = Tree(tmp_path, V1, "/sys/fs/cgroup/memory", "4:memory:/docker/ab\n")
    tree.cgroup(kills=3, peak=GIB, limit=str(2 * GIB))
    told: list[MemoryKill] = []
    watch = MemoryWatch(Loop(), failure_snapshot.snapshot(tree.root), 1, told.append, tree.root)
    tree.machine(9)  # others on this machine are none of our concern
    watch.look()
    assert told == []
    tree.cgroup(kills=4, peak=2 * GIB, limit=str(2 * GIB))
    for _ in range(2):
        watch.look()
    tree.cgroup(kills=6, peak=2 * GIB, limit=str(2 * GIB))
    watch.look()
    counts = ("1 process", "3 processes")
    assert told == [MemoryKill(1, f"the kernel killed {n} (peak 2.0 GiB of a limit of 2.0 GiB)") for n in counts]


def test_it_looks_by_itself_before_the_hub_judges(tmp_path):
    tree = Tree(tmp_path, V1, "/sys/fs/cgroup/memory", "4:memory:/docker/ab\n")
    tree.cgroup(kills=0)
    loop = Loop()
    watch = MemoryWatch(loop, failure_snapshot.snapshot(tree.root), 0, lambda _: loop.stop(), tree.root)
    tree.cgroup(kills=1)
    too_long = loop.after(20.0, lambda: None)
    loop.after(20.0, loop.stop)
    loop.run()
    watch.close()
    assert loop.now() < too_long.deadline
    assert BLAME_S.default > LOOK_S
