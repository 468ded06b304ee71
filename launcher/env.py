"""The environment of the user's process, each variable with its source. Pure.

Two sets: SM_* as AWS's sagemaker-training gives it (str as is, None as "", everything else compact JSON with sorted
keys), and torchrun's contract (RANK, LOCAL_RANK, WORLD_SIZE, .., MASTER_ADDR, MASTER_PORT), the same for every engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import hyperparameters as hp
from .cluster import Cluster, Host
from .config import JobConfig
from .probe import Machine
from .values import Sourced

INFO = 20  # logging.INFO; the module costs 4 ms of every start


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable and where its value came from."""

    name: str
    value: str
    source: str


def encode(value: object) -> str:
    """A value as SM_* variables carry it."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _named(values: Mapping[str, object], source: str) -> list[Variable]:
    """SM_ + upper case; a name with '-' also in the spelling with '_', which shells can read."""
    out = []
    for key, value in values.items():
        name = f"SM_{key.upper()}"
        out.append(Variable(name, encode(value), source))
        if "-" in name:
            out.append(Variable(name.replace("-", "_"), out[-1].value, source))
    return out


def _log_level(raw: Mapping[str, object]) -> int:
    level = hp.decode(raw.get("sagemaker_container_log_level"))
    return level if isinstance(level, int) else INFO


@dataclass(frozen=True, slots=True)
class SageMakerEnvironment:
    """SM_* for every host of a job; what all hosts share is encoded once (a thousand hosts are planned in one go)."""

    config: JobConfig
    machine: Machine
    interface: str

    def shared(self) -> list[Variable]:
        """The variables that are equal on all hosts."""
        config, paths, raw = self.config, self.config.paths, self.config.hyperparameters
        groups, entry = config.resources.groups, config.entry
        out = _named(
            {
                "hosts": list(config.resources.hosts),
                "network_interface_name": config.resources.interface or self.interface,
                "is_hetero": len(groups) > 1,
                "instance_groups": [group.name for group in groups],
                "instance_groups_dict": {
                    group.name: {
                        "instance_group_name": group.name,
                        "instance_type": group.instance_type,
                        "hosts": list(group.hosts),
                    }
                    for group in groups
                },
            },
            config.resources.source,
        )
        out += _named(
            {
                "model_dir": str(paths.model),
                "input_dir": str(paths.input),
                "input_config_dir": str(paths.config),
                "output_dir": str(paths.output),
                "output_data_dir": str(paths.output_data),
                "output_intermediate_dir": str(paths.output_intermediate),
            },
            f"folders below {paths.base}",
        )
        inputs = {"channels": sorted(config.channels), "input_data_config": dict(config.channels)}
        inputs |= {f"channel_{name}": str(paths.channel(name)) for name in config.channels}
        out += _named(inputs, "inputdataconfig.json")
        out += _named(
            {
                "hps": config.user_values,
                "distribution_instance_groups": hp.decode(raw.get("sagemaker_distribution_instance_groups", "[]")),
                "log_level": _log_level(raw),
                "module_dir": hp.text(raw, "sagemaker_submit_directory") or str(paths.code),
                "framework_module": None,
                "framework_params": {},
                **{f"hp_{key}": value for key, value in config.user_values.items()},
            },
            "hyperparameters.json",
        )
        out += _named(
            {
                "user_args": list(entry.args),
                "user_entry_point": entry.target,
                "module_name": entry.target.removesuffix(".py"),
            },
            entry.source,
        )
        if config.job_name:
            out.append(Variable("SAGEMAKER_JOB_NAME", config.job_name, "job name"))
        return out

    def host(self, host: Host) -> list[Variable]:
        """The variables that differ from host to host."""
        resources, machine = self.config.resources, self.machine
        group = next((group for group in resources.groups if host.name in group.hosts), None)
        raw = dict(resources.raw) | {"current_host": host.name}
        if group is not None:
            raw |= {"current_group_name": group.name, "current_instance_type": group.instance_type}
        values: dict[str, object] = {
            "current_host": host.name,
            "current_instance_type": group.instance_type if group else resources.instance_type,
            "current_instance_group": group.name if group else resources.current_group,
            "current_instance_group_hosts": list(group.hosts) if group else [],
            "resource_config": raw,
        }
        return [
            *_named(values, resources.source),
            Variable("CURRENT_HOST", host.name, resources.source),
            *_named({"num_cpus": machine.cpus.value}, machine.cpus.source),
            *_named({"num_gpus": machine.gpus.value, "num_neurons": 0}, machine.gpus.source),
        ]


def shared_contract(cluster: Cluster, master: Sourced[str], port: Sourced[int], attempt: int) -> list[Variable]:
    """The part of torchrun's contract that is the same for all ranks."""
    ranks = f"{cluster.nnodes} hosts' slots"
    torchrun = "torchrun's contract"
    return [
        Variable("WORLD_SIZE", str(cluster.world_size), ranks),
        Variable("GROUP_WORLD_SIZE", str(len(cluster.members)), ranks),
        Variable("ROLE_NAME", "default", torchrun),
        Variable("ROLE_WORLD_SIZE", str(cluster.world_size), ranks),
        Variable("MASTER_ADDR", master.value, master.source),
        Variable("MASTER_PORT", str(port.value), port.source),
        Variable("TORCHELASTIC_RESTART_COUNT", str(attempt), "attempt"),
        Variable("TORCHELASTIC_MAX_RESTARTS", "0", "restarts are the hub's"),
        Variable("TORCHELASTIC_RUN_ID", "algorun", torchrun),
        Variable("TORCHELASTIC_USE_AGENT_STORE", "False", "no agent store"),
    ]


def host_contract(host: Host) -> list[Variable]:
    """The part of torchrun's contract that is the same for all ranks of a host."""
    if not host.joined:
        return []
    return [
        Variable("LOCAL_WORLD_SIZE", str(host.slots.value), host.slots.source),
        Variable("GROUP_RANK", str(host.group_rank), "order of hosts"),
    ]


def rank_contract(rank: int, local_rank: int) -> list[Variable]:
    """The part of torchrun's contract that each rank has of its own."""
    return [
        Variable("RANK", str(rank), "order of hosts and slots"),
        Variable("LOCAL_RANK", str(local_rank), "slot"),
        Variable("ROLE_RANK", str(rank), "order of hosts and slots"),
    ]


def defaults(interface: Sourced[str], machine: Machine, slots: int, environ: Mapping[str, str]) -> list[Variable]:
    """Network and thread settings. A value that the user has set stays, and the plan says so."""
    threads = max(1, machine.cpus.value // slots)
    wishes: Iterable[Variable] = (
        Variable("NCCL_SOCKET_IFNAME", interface.value, interface.source),
        Variable("GLOO_SOCKET_IFNAME", interface.value, interface.source),
        Variable("TP_SOCKET_IFNAME", interface.value, interface.source),
        Variable("OMP_NUM_THREADS", str(threads), f"{machine.cpus.value} CPUs / {slots} slots"),
        Variable("PYTHONUNBUFFERED", "1", "lines leave a rank when they are printed"),
    )
    kept = "set in the environment: kept"
    return [Variable(w.name, environ[w.name], kept) if environ.get(w.name) else w for w in wishes]
