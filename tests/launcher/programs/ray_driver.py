"""A Ray driver: what it does depends on its argument."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

import ray


def main(mode: str) -> None:
    if mode != "alone":
        ray.init()
        print("driver", os.environ["RAY_ADDRESS"], sorted(node["NodeName"] for node in ray.nodes()), flush=True)
    MODES[mode]()


@ray.remote(num_cpus=1)
class Holder:
    """One for each host: each host has one CPU."""

    def place(self) -> tuple[str, str]:
        return os.environ["SM_CURRENT_HOST"], ray.util.get_node_ip_address()

    def speak(self) -> None:
        print("spoken on", os.environ["SM_CURRENT_HOST"], flush=True)

    def fail(self, where: str) -> None:
        if os.environ["SM_CURRENT_HOST"] == where:
            raise ValueError("bad sample\nof two lines")
        time.sleep(60)

    def die(self, where: str) -> None:
        if os.environ["SM_CURRENT_HOST"] == where:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def holders() -> list[ray.actor.ActorHandle]:
    count = len(ray.nodes())
    found = [Holder.remote() for _ in range(count)]
    print("places", sorted(ray.get([each.place.remote() for each in found])), flush=True)
    return found


def spread() -> None:
    """Actors on all hosts, and more tasks than CPUs."""
    found = holders()
    ray.get([each.speak.remote() for each in found])
    for each in found:
        ray.kill(each)

    @ray.remote(num_cpus=1)
    def square(number: int) -> int:
        return number * number

    print("sum", sum(ray.get([square.remote(number) for number in range(20)])), flush=True)
    if group := os.environ.get("GROUP"):
        print(group, ray.cluster_resources()[group])


def task() -> None:
    """A task that calls a task that raises."""

    @ray.remote
    def inner() -> None:
        raise KeyError("not there")

    @ray.remote(num_cpus=0)
    def outer() -> None:
        ray.get(inner.remote())

    ray.get(outer.remote())


def actor() -> None:
    ray.get([each.fail.remote("algo-2") for each in holders()])


def die() -> None:
    ray.get([each.die.remote("algo-2") for each in holders()])


def wait() -> None:
    """Until it is told to stop; then it saves, with the help of the cluster."""
    found = holders()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    print("waiting", flush=True)
    while not stopped:
        time.sleep(0.1)
    print("saved on", sorted(ray.get([each.place.remote() for each in found])), flush=True)


def again() -> None:
    """Fails in its first attempt, which leaves a file."""
    seen = pathlib.Path("seen")
    if not seen.exists():
        seen.touch()
        task()
    holders()


def grow() -> None:
    """A task takes more memory than Ray's monitor allows."""

    @ray.remote(num_cpus=1, max_retries=0)
    def take() -> int:
        taken = bytearray(1 << 30)
        taken[:] = b"x" * (1 << 30)
        time.sleep(30)
        return len(taken)

    ray.get(take.remote())


def own() -> None:
    raise RuntimeError("the driver's own")


def leave() -> None:
    sys.exit(7)


def alone() -> None:
    """Does not connect to the cluster."""
    print("computed alone", flush=True)


MODES = {each.__name__: each for each in (alone, spread, task, actor, die, wait, again, grow, own, leave)}

if __name__ == "__main__":
    main(sys.argv[1])
