"""What each host gives to a Ray cluster. Pure."""

from __future__ import annotations

from algorun.job import settings
from algorun.job.config import JobConfig
from algorun.machine import ray
from algorun.machine.probe import Machine
from algorun.machine.ray import MIB, NodeResources

from .cluster import Meeting
from .engines.base import RayCluster


def offer(config: JobConfig, machine: Machine) -> NodeResources:
    """What this host gives to Ray's scheduler. Raises UserError if /dev/shm is too small for the object store that was asked for.

    CPUs: the number of slots that was asked for, else all. Hosts that share a machine share its memory too.
    """
    hosts, addresses = config.resources.hosts, config.control.addresses
    sharing = len(hosts) if addresses and all(each.startswith("127.") for each in addresses.values()) else 1
    asked = settings.RAY_OBJECT_STORE_MB.read(config.environ)
    memory, shm = machine.memory_bytes // sharing, machine.shm_bytes // sharing
    store = ray.object_store(memory, shm, None if asked is None else asked * MIB, settings.RAY_OBJECT_STORE_MB.name)
    slots = config.launch.slots
    cpus = slots.value if slots is not None else max(1, machine.cpus.value // sharing)
    return NodeResources(cpus, machine.gpus.value, max(0, memory - store), store)


def make(config: JobConfig, machine: Machine, meeting: Meeting) -> RayCluster:
    """The cluster of a job. Every other host is assumed to be like the planning one."""
    own, hosts = offer(config, machine), config.resources.hosts
    known = {**config.control.addresses, **meeting.addresses}
    return RayCluster(
        installation=machine.ray,
        addresses={host: known.get(host, host) for host in hosts},
        offers=dict.fromkeys(hosts, own),
        groups={host: tuple(group.name for group in config.resources.groups if host in group.hosts) for host in hosts},
        secret=meeting.secret or "chosen at the gate",
    )
