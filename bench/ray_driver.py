"""The driver of bench/ray_launch.py, which runs in its containers: what it does depends on the variable MODE.

It leaves the times of what happens in /opt/ml/marks of the host where it happens. algorun starts it as a program, and
AWS's sample imports it after a `ray.init()` of its own.
"""

from __future__ import annotations

import os
import pathlib
import signal
import time

MARKS = pathlib.Path("/opt/ml/marks")


def mark(name: str) -> None:
    """Writes the time now, aside and renamed."""
    MARKS.mkdir(exist_ok=True)
    aside = MARKS / f"{name}.{os.getpid()}"
    aside.write_text(repr(time.time()))
    aside.rename(MARKS / name)


mark("first")

# The driver's first line is before its imports.
import ray  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402


def nodes() -> list[str]:
    """Identifiers of the nodes that are alive."""
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]


def on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


@ray.remote(num_cpus=1)
def where() -> str:
    time.sleep(0.2)
    return os.uname().nodename


@ray.remote(num_cpus=0, max_retries=0)
def grow() -> None:
    """Takes memory until something ends it."""
    taken = []
    while True:
        taken.append(bytearray(os.urandom(1 << 20)) * 32)
        mark("fault")
        time.sleep(0.1)


@ray.remote(num_cpus=0)
class Holder:
    """One for each host."""

    def host(self) -> str:
        return os.uname().nodename

    def stay(self, raises_on: str) -> None:
        if self.host() == raises_on:
            mark("fault")
            raise ValueError("bad sample 17")
        time.sleep(600)


def holders() -> list[ray.actor.ActorHandle]:
    found = [Holder.options(scheduling_strategy=on(node)).remote() for node in nodes()]
    print("actors on", sorted(ray.get([each.host.remote() for each in found])), flush=True)
    return found


def tasks() -> None:
    """Tasks on all hosts, one CPU each."""
    found = ray.get([where.options(scheduling_strategy="SPREAD").remote() for _ in range(16)])
    print("tasks on", sorted(set(found)), flush=True)


def actors() -> None:
    holders()


def data() -> None:
    import ray.data

    doubled = ray.data.range(1000, override_num_blocks=8).map_batches(lambda batch: {"id": batch["id"] * 2})
    print("Ray Data sum", sum(row["id"] for row in doubled.take_all()), flush=True)


def train() -> None:
    """TorchTrainer of Ray's documentation on gloo, a worker on each of two hosts."""
    import ray.train
    import ray.train.torch

    def loop() -> None:
        import torch

        model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            inputs = torch.randn(16, 4)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        context, weight = ray.train.get_context(), next(model.parameters()).sum().item()
        place = f"worker {context.get_world_rank()} of {context.get_world_size()} on {os.uname().nodename}"
        print(f"{place}: {torch.distributed.get_backend()}, weights {weight:.6f}", flush=True)
        ray.train.report({"loss": loss.item()})

    scaling = ray.train.ScalingConfig(num_workers=2, use_gpu=False, placement_strategy="STRICT_SPREAD")
    run = ray.train.RunConfig(storage_path="/tmp/results", name="line")
    print("TorchTrainer", ray.train.torch.TorchTrainer(loop, scaling_config=scaling, run_config=run).fit().metrics)


def wait(raises_on: str = "") -> None:
    """As a job that trains: the driver waits for an actor on each host."""
    found = holders()
    running = [each.stay.remote(raises_on) for each in found]
    mark("waiting")
    ray.get(running)


def driver_raises() -> None:
    holders()
    mark("fault")
    raise RuntimeError("the driver's own")


def actor_raises() -> None:
    wait(os.environ["FOLLOWER"])


def memory() -> None:
    """A task on a host other than the driver's takes too much."""
    own = ray.get_runtime_context().get_node_id()
    ray.get(grow.options(scheduling_strategy=on(next(node for node in nodes() if node != own))).remote())


def save() -> None:
    """Until it is told to stop. Then it saves, which needs an answer of every host."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    found = holders()
    mark("waiting")
    while not stopped:
        time.sleep(0.1)
    print("saved with", sorted(ray.get([each.host.remote() for each in found])), flush=True)


MODES = {each.__name__: each for each in (tasks, actors, data, train, wait, driver_raises, actor_raises, memory, save)}


def main() -> None:
    ray.init(ignore_reinit_error=True)
    ray.get([where.options(scheduling_strategy=on(node)).remote() for node in nodes()])
    mark("ready")
    for mode in os.environ["MODE"].split(","):
        MODES[mode]()
    print("the driver's last line", flush=True)
    mark("last")


main()
