"""The ray engine: a Ray node on each host, the head on the leader. The user's program is the driver, there as well."""

from __future__ import annotations

import json

from .base import Pieces, RankHost, RayCluster, Wanted

PROGRAM = "ray"  # on a host without Ray


def pieces(wanted: Wanted) -> Pieces:
    """`ray start --block` on every host, and what connects a driver and the nodes.

    Ports that are not named here are the kernel's choice: Ray binds them at once, so no other process takes them.
    """
    ray = wanted.ray
    assert ray is not None
    address = f"{ray.addresses[wanted.leader]}:{wanted.engine_port}"
    head = ["--head", f"--port={wanted.engine_port}", "--include-dashboard=false", "--no-monitor"]
    if ray.installation is not None and ray.installation.has_client_server:
        head.append(f"--ray-client-server-port={wanted.master_port}")  # else 10001, which another job may have
    starters = {
        host.name: (
            ray.installation.command if ray.installation else PROGRAM,
            "start",
            *(head if host.name == wanted.leader else [f"--address={address}"]),
            *_node(host, ray),
        )
        for host in wanted.hosts
    }
    source = "engine ray"
    shared = {
        "RAY_ADDRESS": (address, "the head on the leader"),
        "RAY_USAGE_STATS_ENABLED": ("0", "nothing is reported to Ray's makers"),
        "RAY_COLOR_PREFIX": ("0", "logs are read as text"),
        # Ray's servers listen on all addresses of a host, and who reaches one may run any program there.
        "RAY_AUTH_MODE": ("token", source),
        "RAY_AUTH_TOKEN": (ray.secret, "random, of this attempt"),
    }
    return Pieces(starters, contract=False, addresses=ray.addresses, shared=shared)


def _node(host: RankHost, ray: RayCluster) -> list[str]:
    """The options of one node: its address, and what it gives to the scheduler."""
    offer = ray.offers[host.name]
    options = [
        "--block",
        f"--node-ip-address={ray.addresses[host.name]}",
        f"--node-name={host.name}",
        f"--num-cpus={offer.cpus}",
        f"--num-gpus={offer.gpus}",
        f"--memory={offer.memory_bytes}",
        f"--object-store-memory={offer.store_bytes}",
        "--node-manager-port=0",
        "--object-manager-port=0",
        "--min-worker-port=0",
        "--max-worker-port=0",
    ]
    if groups := ray.groups.get(host.name):
        options.append(f"--resources={json.dumps(dict.fromkeys(groups, 1))}")
    return options
