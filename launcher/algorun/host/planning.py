"""The plan of an attempt, from the hub's `go`. Pure."""

from __future__ import annotations

from algorun.control.messages import Go, Ready
from algorun.job.config import JobConfig
from algorun.job.values import Sourced
from algorun.machine.probe import Machine
from algorun.plan import cluster, plan
from algorun.plan.cluster import Cluster, Meeting
from algorun.plan.engines.base import Programs
from algorun.plan.plan import Plan


def planned(config: JobConfig, machine: Machine, programs: Programs, go: Go) -> tuple[Cluster, Plan]:
    """All hosts with their ranks, and the plan that every host makes of the same `go`. Raises UserError."""
    hosts, launch = config.resources.hosts, config.launch
    slots = {host: Sourced(count, f"{host} at the gate") for host, count in go.slots.items()}
    ports = go.master_port, go.engine_port, go.jax_port
    port, engine_port, jax_port = (Sourced(number, "free on the leader") for number in ports)
    address = Sourced(go.master_addr, "leader")
    meeting = Meeting(
        address, port, engine_port, jax_port, go.attempt, go.tf_ports, addresses=go.addresses, secret=go.secret
    )
    found = cluster.resolve(hosts, slots, launch.outside, has_driver=launch.engine.value.has_driver)
    return found, plan.make(config, found, machine, programs, meeting)


def before_the_gate(hosts: tuple[str, ...], ready: Ready) -> Go:
    """What the leader of an engine with a driver knows of its `go` while other hosts are missing: all that its own
    processes of the engine need."""
    leader = hosts[0]
    return Go(
        attempt=0,
        master_addr=ready.master_addr,
        master_port=ready.master_port,
        slots={host: ready.slots if host == leader else 0 for host in hosts},
        engine_port=ready.engine_port,
        jax_port=ready.jax_port,
        addresses={leader: ready.address},
        secret=ready.secret,
    )
