"""SageMaker's environment variables SM_*, each with its source. Pure.

They are those of AWS's sagemaker-training 5.1.4 (a string unchanged, None as "", any other value as compact JSON with
sorted keys) and those that SageMaker SDK v3's drivers add. tests/contract compares the former with AWS's toolkit and
lists every intended difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from algorun.common.codec import loads
from algorun.common.fast_dataclasses import dataclass
from algorun.job import hyperparameters as hp
from algorun.job import settings
from algorun.job.config import JobConfig
from algorun.job.hyperparameter_groups import DATA_PARALLEL, PlatformKeys
from algorun.job.hyperparameters import LONGEST
from algorun.job.jobfiles import Resources
from algorun.machine.probe import Machine

from .cluster import Host
from .rank_env import Variable

# The toolkit's defaults for values that resourceconfig.json lacks in the SDKs' local modes.
LOCAL_TYPE = "local"
ONLY_GROUP = "homogeneousCluster"
ASSUMED_INTERFACE = "eth0"
FRAMEWORK_PARAMS = "SM_FRAMEWORK_PARAMS"
KEPT = "set in the environment: kept"

# Platform keys that configure the toolkit itself; SM_FRAMEWORK_PARAMS has the others.
TOOLKIT_KEYS = frozenset(
    f"sagemaker_{name}"
    for name in (
        *("program", "submit_directory", "enable_cloudwatch_metrics", "region", "container_log_level", "job_name"),
        "s3_output",
    )
)

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def encode(value: object) -> str:
    """A value as the text of an SM_* variable."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return _JSON.encode(value)


def _object(fragments: Mapping[str, str]) -> str:
    """A JSON object from values that are JSON already, so that values shared by a thousand hosts are encoded once."""
    return "{" + ",".join(f"{_JSON.encode(key)}:{fragments[key]}" for key in sorted(fragments)) + "}"


def _fragments(values: Mapping[str, object]) -> dict[str, str]:
    return {key: _JSON.encode(value) for key, value in values.items()}


def named(values: Mapping[str, object], source: str, prefix: str = "SM_") -> list[Variable]:
    """A variable SM_KEY for each value. If keys differ only in case, the last one counts, as in the toolkit."""
    out = {name: encode(value) for key, value in values.items() if "=" not in (name := f"{prefix}{key.upper()}")}
    return [Variable(name, value, source) for name, value in out.items()]


def with_aliases(variables: Sequence[Variable]) -> list[Variable]:
    """The variables, and for a name with '-' a second one with '_' (shells cannot read '-'), unless that name exists."""
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
    """The variables below 128 KiB: Linux starts no process with a larger one. The variable `left_out` lists the rest."""
    long = [v.name for v in variables if len(f"{v.name}={v.value}".encode(errors="replace")) >= LONGEST]
    if not long:
        return list(variables)
    why = f"{LONGEST} bytes or more: too large for a process"
    return [*(v for v in variables if v.name not in long), Variable(left_out, " ".join(long), why)]


def _given_params(environ: Mapping[str, str]) -> dict[str, object]:
    """The platform's keys of SM_FRAMEWORK_PARAMS from the environment, for a launch without a job's hyperparameters.

    Libraries such as transformers look there for the distribution. Empty for a text that is no JSON object.
    """
    try:
        given = loads(environ.get(FRAMEWORK_PARAMS) or "{}")
    except ValueError:
        return {}
    return {key: value for key, value in given.items() if hp.is_platform_key(key)} if isinstance(given, dict) else {}


def _distribution_groups(platform: PlatformKeys, current_group: str) -> list[str]:
    """The instance groups of the distribution: those that it names, else the current one; none without a distribution."""
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
    """The variables about the distribution, for the hosts of one instance group."""

    fragments: Mapping[str, str]  # JSON values by the toolkit's names, for SM_TRAINING_ENV
    variables: tuple[Variable, ...]
    master: str


class SageMakerEnvironment:
    """SM_* for every host of a job. Values that all hosts share are encoded once, so that a thousand hosts cost little."""

    def __init__(self, config: JobConfig, machine: Machine, interface: str) -> None:
        self._config, self._machine = config, machine
        resources, paths, platform = config.resources, config.paths, config.hyperparameters.platform
        name = config.program
        channels = {name: channel.folder for name, channel in config.input.channels.items()}
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
        self._framework_source = "hyperparameters.json"
        if not self._framework_params and (given := _given_params(config.environ)):
            self._framework_params, self._framework_source = given, KEPT
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
                "input_data_config": dict(config.input.described),
                # The toolkit reads the variable here, not the hyperparameter.
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

    @property
    def data_parallel(self) -> bool:
        """Whether the job asks for smdistributed.dataparallel."""
        where = f"{DATA_PARALLEL} in {FRAMEWORK_PARAMS}" if self._framework_source == KEPT else ""
        return hp.flag(self._framework_params, DATA_PARALLEL, where)

    def shared(self) -> list[Variable]:
        """The variables that are equal on all hosts."""
        config, entry, paths = self._config, self._config.entry, self._config.paths
        out = named(self._from_resources, config.resources.source)
        out += named(self._folders, f"folders below {config.paths.base}")
        inputs: dict[str, object] = {
            "channels": sorted(self._channels),
            "input_data_config": dict(config.input.described),
        }
        folders = {f"channel_{name}": path for name, path in self._channels.items()}
        described = paths.processing_config if config.input.processing else paths.inputdataconfig
        out += named({**inputs, **folders}, described.name)
        told = {"hps": config.hyperparameters.user, **self._from_hyperparameters}
        out += named(told, "hyperparameters.json")
        out += named({"framework_params": self._framework_params}, self._framework_source)
        own = {f"hp_{key}": value for key, value in config.hyperparameters.user.items()}
        out += named(own, "hyperparameters.json")
        out += named({"framework_module": self._framework_module}, "SAGEMAKER_TRAINING_MODULE")
        out += named({"user_args": list(entry.args), **self._from_entry}, entry.source)
        out += [Variable("SAGEMAKER_JOB_NAME", config.job_name, "job name"), _region(config)]
        v3 = {
            "source_dir": entry.cwd,
            "entry_script": config.program,
            "input_data_dir": str(config.paths.input / "data"),
            "output_failure": str(config.paths.failure),
            "host_count": len(config.resources.hosts),
        }
        return _fitting(with_aliases([*out, *named(v3, "SageMaker SDK v3's name")]), settings.LEFT_OUT_JOB.name)

    def _place(self, host: Host) -> tuple[Mapping[str, str], str, str]:
        """The content of the host's own resourceconfig.json as JSON values, its instance type and its group."""
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
                tuple(named(values, resources.source)),
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
            *named(values, source),
            *distribution.variables,
            Variable("SM_TRAINING_ENV", _object(training), "all of the above"),
            Variable("CURRENT_HOST", host.name, source),
            Variable("SM_CURRENT_HOST_RANK", str(host.node_rank), "order of hosts"),
            *named({"num_cpus": machine.cpus.value}, machine.cpus.source),
            *named({"num_gpus": machine.gpus.value, "num_neurons": 0}, machine.gpus.source),
        ]
        return _fitting(out, settings.LEFT_OUT_HOST.name)
