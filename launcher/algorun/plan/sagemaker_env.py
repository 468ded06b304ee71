"""SM_*: the environment that SageMaker's users rely on, each variable with its source. Pure.

As AWS's sagemaker-training 5.1.4 gives it (str as is, None as "", everything else compact JSON with sorted keys), and
what SageMaker SDK v3's drivers add to it. tests/contract holds the first against the toolkit itself and lists every
wanted difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from algorun.job import settings
from algorun.job.config import JobConfig
from algorun.job.hyperparameter_groups import PlatformKeys
from algorun.job.hyperparameters import LONGEST
from algorun.job.jobfiles import Resources
from algorun.machine.probe import Machine

from .cluster import Host
from .rank_env import Variable

# What the toolkit assumes where resourceconfig.json does not say: local modes name neither.
LOCAL_TYPE = "local"
ONLY_GROUP = "homogeneousCluster"
ASSUMED_INTERFACE = "eth0"

# Platform keys that configure the toolkit itself; the others are SM_FRAMEWORK_PARAMS.
TOOLKIT_KEYS = frozenset(
    f"sagemaker_{name}"
    for name in (
        *("program", "submit_directory", "enable_cloudwatch_metrics", "region", "container_log_level", "job_name"),
        "s3_output",
    )
)

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def encode(value: object) -> str:
    """A value as SM_* variables carry it."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return _JSON.encode(value)


def _object(fragments: Mapping[str, str]) -> str:
    """A JSON object from values that are JSON already: what a thousand hosts share is encoded once."""
    return "{" + ",".join(f"{_JSON.encode(key)}:{fragments[key]}" for key in sorted(fragments)) + "}"


def _fragments(values: Mapping[str, object]) -> dict[str, str]:
    return {key: _JSON.encode(value) for key, value in values.items()}


def _named(values: Mapping[str, object], source: str) -> list[Variable]:
    """SM_ + upper case. Of keys that differ only in case the last one counts, as in the toolkit."""
    out = {name: encode(value) for key, value in values.items() if "=" not in (name := f"SM_{key.upper()}")}
    return [Variable(name, value, source) for name, value in out.items()]


def _with_aliases(variables: Sequence[Variable]) -> list[Variable]:
    """A name with '-' also in the spelling with '_', which shells can read, unless another variable has that name."""
    taken = {variable.name for variable in variables}
    out = []
    for variable in variables:
        out.append(variable)
        other = variable.name.replace("-", "_")
        if other not in taken:
            taken.add(other)
            out.append(Variable(other, variable.value, variable.source))
    return out


def _fitting(variables: Sequence[Variable], left_out: str) -> list[Variable]:
    """All that a process can be given: Linux starts none with a variable of 128 KiB. `left_out` names the others."""
    long = [v.name for v in variables if len(f"{v.name}={v.value}".encode(errors="replace")) >= LONGEST]
    if not long:
        return list(variables)
    why = f"{LONGEST} bytes or more, which no process can be given"
    return [*(v for v in variables if v.name not in long), Variable(left_out, " ".join(long), why)]


def _distribution_groups(platform: PlatformKeys, current_group: str) -> list[str]:
    """The instance groups that the distribution spans: the named ones, else the current one if there is any."""
    if platform.instance_groups is not None:
        return list(platform.instance_groups)
    return [current_group] if platform.distributions else []


def _distribution_hosts(names: list[str], resources: Resources) -> list[str]:
    if not resources.groups:
        return list(resources.hosts)
    return [host for group in resources.groups if group.name in names for host in group.hosts]


def _region(config: JobConfig) -> Variable:
    region = config.hyperparameters.platform.region
    if region is not None:
        return Variable("SAGEMAKER_REGION", region, "hyperparameter sagemaker_region")
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        if config.environ.get(name):
            return Variable("SAGEMAKER_REGION", config.environ[name], name)
    return Variable("SAGEMAKER_REGION", "", "no region is known")


@dataclass(frozen=True, slots=True)
class Distribution:
    """How the hosts of one group see the distribution."""

    fragments: Mapping[str, str]  # JSON values, by the toolkit's names
    variables: tuple[Variable, ...]
    master: str


class SageMakerEnvironment:
    """SM_* for every host of a job. What all hosts share is encoded once: a thousand hosts are planned in one go."""

    def __init__(self, config: JobConfig, machine: Machine, interface: str) -> None:
        self._config, self._machine = config, machine
        resources, paths, platform = config.resources, config.paths, config.hyperparameters.platform
        name = config.program
        channels = {channel: str(paths.channel(channel)) for channel in config.input.channels}
        self._from_resources: dict[str, object] = {
            "hosts": list(resources.hosts),
            "network_interface_name": resources.interface or interface or ASSUMED_INTERFACE,
            "is_hetero": len(resources.groups) > 1,
            "instance_groups": [group.name for group in resources.groups],
            "instance_groups_dict": {group.name: dict(group.raw) for group in resources.groups},
        }
        topology = resources.raw.get("topology", [])
        if topology:
            self._from_resources["topology"] = topology
        self._folders: dict[str, object] = {
            "model_dir": str(paths.model),
            "input_dir": str(paths.input),
            "input_config_dir": str(paths.config),
            "output_dir": str(paths.output),
            "output_data_dir": str(paths.output_data),
            "output_intermediate_dir": str(paths.output_intermediate),
        }
        self._from_hyperparameters: dict[str, object] = {
            "log_level": platform.log_level,
            "module_dir": str(paths.code) if platform.module_dir is None else platform.module_dir,
        }
        self._framework_params = {key: value for key, value in platform.decoded.items() if key not in TOOLKIT_KEYS}
        self._from_entry: dict[str, object] = {"user_entry_point": name, "module_name": name.removesuffix(".py")}
        self._framework_module = config.environ.get("SAGEMAKER_TRAINING_MODULE")
        self._channels = channels
        self._groups = {member: group for group in reversed(resources.groups) for member in group.hosts}
        self._resource_fragments = _fragments(resources.raw)
        self._training_fragments = _fragments(
            {
                **self._from_resources,
                **self._folders,
                **self._from_hyperparameters,
                **self._from_entry,
                "additional_framework_parameters": self._framework_params,
                "channel_input_dirs": channels,
                "framework_module": self._framework_module,
                "hyperparameters": config.hyperparameters.user,
                "input_data_config": dict(config.input.channels),
                # The toolkit looks for the variable, not for the hyperparameter behind it.
                "is_modelparallel_enabled": (mp := config.environ.get("SM_HP_MP_PARAMETERS")) and mp != "{}",
                "is_smddpmprun_installed": False,
                "is_smddprun_installed": False,
                "job_name": config.environ.get("TRAINING_JOB_NAME"),
                "num_cpus": machine.cpus.value,
                "num_gpus": machine.gpus.value,
                "num_neurons": 0,
                "topology": topology,
            }
        )
        self._distributions: dict[str, Distribution] = {}

    def shared(self) -> list[Variable]:
        """The variables that are equal on all hosts."""
        config, entry = self._config, self._config.entry
        out = _named(self._from_resources, config.resources.source)
        out += _named(self._folders, f"folders below {config.paths.base}")
        inputs = {"channels": sorted(self._channels), "input_data_config": dict(config.input.channels)}
        out += _named(
            inputs | {f"channel_{name}": path for name, path in self._channels.items()}, "inputdataconfig.json"
        )
        out += _named(
            {
                "hps": config.hyperparameters.user,
                **self._from_hyperparameters,
                "framework_params": self._framework_params,
                **{f"hp_{key}": value for key, value in config.hyperparameters.user.items()},
            },
            "hyperparameters.json",
        )
        out += _named({"framework_module": self._framework_module}, "SAGEMAKER_TRAINING_MODULE")
        out += _named({"user_args": list(entry.args), **self._from_entry}, entry.source)
        out += [Variable("SAGEMAKER_JOB_NAME", config.job_name, "job name"), _region(config)]
        v3 = {
            "source_dir": entry.cwd,
            "entry_script": config.program,
            "input_data_dir": str(config.paths.input / "data"),
            "output_failure": str(config.paths.failure),
            "host_count": len(config.resources.hosts),
        }
        return _fitting(_with_aliases([*out, *_named(v3, "SageMaker SDK v3's name")]), settings.LEFT_OUT_JOB.name)

    def _place(self, host: Host) -> tuple[Mapping[str, str], str, str]:
        """What the host's own resourceconfig.json says, as JSON values, its instance type and its group."""
        resources = self._config.resources
        kind = resources.instance_type if "current_instance_type" in resources.raw else LOCAL_TYPE
        name = resources.current_group if "current_group_name" in resources.raw else ONLY_GROUP
        if host.name == resources.current_host:
            return self._resource_fragments, kind, name
        own = {"current_host": host.name}
        group = self._groups.get(host.name)
        if group is not None:
            kind, name = group.instance_type, group.name
            own |= {"current_group_name": name, "current_instance_type": kind}
        return {**self._resource_fragments, **_fragments(own)}, kind, name

    def _distribution(self, group: str) -> Distribution:
        if group not in self._distributions:
            resources = self._config.resources
            groups = _distribution_groups(self._config.hyperparameters.platform, group)
            hosts = _distribution_hosts(groups, resources)
            values: dict[str, object] = {
                "current_instance_group": group,
                "current_instance_group_hosts": next((list(g.hosts) for g in resources.groups if g.name == group), []),
                "distribution_instance_groups": groups,
            }
            master = (hosts or resources.hosts)[0]
            self._distributions[group] = Distribution(
                _fragments({**values, "distribution_hosts": hosts, "master_hostname": master}),
                tuple(_named(values, resources.source)),
                master,
            )
        return self._distributions[group]

    def host(self, host: Host) -> list[Variable]:
        """The variables that differ from host to host."""
        machine, source = self._machine, self._config.resources.source
        fragments, kind, group = self._place(host)
        distribution = self._distribution(group)
        resource_config = _object(fragments)
        training = {
            **self._training_fragments,
            **distribution.fragments,
            "current_host": _JSON.encode(host.name),
            "current_instance_type": _JSON.encode(kind),
            "is_master": _JSON.encode(host.name == distribution.master),
            "resource_config": resource_config,
        }
        values = {"current_host": host.name, "current_instance_type": kind, "resource_config": resource_config}
        out = [
            *_named(values, source),
            *distribution.variables,
            Variable("SM_TRAINING_ENV", _object(training), "all of the above"),
            Variable("CURRENT_HOST", host.name, source),
            Variable("SM_CURRENT_HOST_RANK", str(host.node_rank), "order of hosts"),
            *_named({"num_cpus": machine.cpus.value}, machine.cpus.source),
            *_named({"num_gpus": machine.gpus.value, "num_neurons": 0}, machine.gpus.source),
        ]
        return _fitting(out, settings.LEFT_OUT_HOST.name)
