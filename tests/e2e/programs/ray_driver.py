"""A Ray driver in containers: what it does depends on its argument."""

from __future__ import annotations

import os
import signal
import sys
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def main(mode: str) -> None:
    print("the driver runs", flush=True)
    if mode != "alone":
        ray.init()
        print("nodes", sorted(node["NodeName"] for node in ray.nodes() if node["Alive"]), flush=True)
    MODES[mode]()


@ray.remote(num_cpus=0)
def where() -> str:
    return os.environ["SM_CURRENT_HOST"]


@ray.remote(num_cpus=0, max_retries=0)
def take() -> None:
    """Takes memory until something ends it."""
    taken = []
    while True:
        taken.append(b"x" * (1 << 26))


@ray.remote(num_cpus=0)
class Holder:
    """Holds an object in shared memory."""

    def hold(self) -> str:
        self.held = ray.put(bytes(8 << 20))
        return os.environ["SM_CURRENT_HOST"]


def on(host: str) -> NodeAffinitySchedulingStrategy:
    node = next(node["NodeID"] for node in ray.nodes() if node["NodeName"] == host)
    return NodeAffinitySchedulingStrategy(node, soft=False)


def spread() -> list[ray.actor.ActorHandle]:
    """Actors on both hosts, each with an object of its own."""
    found = [Holder.options(scheduling_strategy=on(host)).remote() for host in ("algo-1", "algo-2")]
    print("held on", ray.get([each.hold.remote() for each in found]), flush=True)
    return found


def raises() -> None:
    found = spread()
    raise RuntimeError(f"the driver's own, with {len(found)} actors")


def wait() -> None:
    """Until it is told to stop."""
    found = spread()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    print("waiting", flush=True)
    while not stopped:
        time.sleep(0.1)
    print("saved with", ray.get([each.hold.remote() for each in found]), flush=True)


def groups() -> None:
    """Each task where its instance group is."""
    for group in ("trainers", "samplers"):
        print(group, "on", set(ray.get([where.options(resources={group: 0.1}).remote() for _ in range(4)])), flush=True)


def memory() -> None:
    ray.get(take.options(scheduling_strategy=on("algo-2")).remote())


def alone() -> None:
    """Does not connect to the cluster."""
    print("computed alone", flush=True)


MODES = {each.__name__: each for each in (spread, raises, wait, groups, memory, alone)}

if __name__ == "__main__":
    main(sys.argv[1])
