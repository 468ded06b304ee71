"""The plan of an attempt, from the hub's `go`. Pure."""

from __future__ import annotations

from algorun.control.wire.messages import Go
from algorun.job.config import JobConfig
from algorun.job.values import Sourced
from algorun.machine.probe import Machine
from algorun.plan import cluster, plan
from algorun.plan.cluster import Meeting
from algorun.plan.engines.base import Programs
from algorun.plan.plan import Plan


def planned(config: JobConfig, machine: Machine, programs: Programs, go: Go) -> Plan:
    """The plan that every host makes of the same `go`. Raises UserError."""
    slots = {host: Sourced(count, f"{host} at the gate") for host, count in go.slots.items()}
    ports = go.master_port, go.engine_port, go.jax_port
    port, engine_port, jax_port = (Sourced(number, "free on the leader") for number in ports)
    address = Sourced(go.master_addr, "leader")
    meeting = Meeting(
        address, port, engine_port, jax_port, go.attempt, go.tf_ports, addresses=go.addresses, secret=go.secret
    )
    return plan.make(config, cluster.resolve(config, slots), machine, programs, meeting)
