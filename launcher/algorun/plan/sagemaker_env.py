"""SM_*: the environment that SageMaker's users rely on, each variable with its source. Pure.

As AWS's sagemaker-training 5.1.4 gives it (str as is, None as "", everything else compact JSON with sorted keys), and
what SageMaker SDK v3's drivers add to it. tests/contract holds the first against the toolkit itself and lists every
wanted difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from algorun.job import hyperparameters as hp
from algorun.job.config import JobConfig
from algorun.job.jobfiles import Resources
from algorun.machine.probe import Machine

from .cluster import Host
from .rank_env import Variable

INFO = 20  # logging.INFO; the module costs 4 ms of every start
LEFT_OUT = "ALGORUN_LEFT_OUT"

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
DISTRIBUTIONS = tuple(
    f"sagemaker_{name}_enabled"
    for name in (
        *("mpi", "parameter_server", "distributed_dataparallel", "pytorch_ddp", "pytorch_xla_multi_worker"),
        *("multi_worker_mirrored_strategy", "torch_distributed"),
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


def _fitting(variables: Sequence[Variable], label: str) -> list[Variable]:
    """All that a process can be given: Linux starts none with a variable of 128 KiB. `label` names the set."""
    long = [v.name for v in variables if len(f"{v.name}={v.value}".encode(errors="replace")) >= hp.LONGEST]
    if not long:
        return list(variables)
    why = f"{hp.LONGEST} bytes or more, which no process can be given"
    return [*(v for v in variables if v.name not in long), Variable(f"{LEFT_OUT}_{label}", " ".join(long), why)]


def _distribution_groups(raw: Mapping[str, object], current_group: object) -> object:
    """The instance groups that the distribution spans: the named ones, else the current one if there is any."""
    key = "sagemaker_distribution_instance_groups"
    if key in raw:
        return hp.decode(raw[key])
    return [current_group] if any(hp.flag(raw, name) for name in DISTRIBUTIONS) else []


def _distribution_hosts(groups: object, resources: Resources) -> list[str]:
    if not resources.groups:
        return list(resources.hosts)
    wanted = groups if isinstance(groups, list) else [groups]
    return [host for group in resources.groups if group.name in wanted for host in group.hosts]


def program(config: JobConfig) -> str:
    """The entry point as the user named it, however it is started."""
    if config.entry.source == "SAGEMAKER_PROGRAM":
        return config.environ["SAGEMAKER_PROGRAM"]
    if config.entry.source == "hyperparameter sagemaker_program":
        return hp.text(config.hyperparameters, "sagemaker_program")
    return config.entry.target


def _log_level(raw: Mapping[str, object]) -> int:
    """A number, as scripts read it; the toolkit's job ends on a word."""
    level = hp.decode(raw.get("sagemaker_container_log_level"))
    return level if isinstance(level, int) else INFO


def _region(config: JobConfig) -> Variable:
    key = "sagemaker_region"
    if key in config.hyperparameters:
        return Variable("SAGEMAKER_REGION", hp.text(config.hyperparameters, key), f"hyperparameter {key}")
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
        resources, paths, raw = config.resources, config.paths, config.hyperparameters
        name = program(config)
        module_dir = hp.decode(raw.get("sagemaker_submit_directory", str(paths.code)))
        channels = {channel: str(paths.channel(channel)) for channel in config.channels}
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
            "log_level": _log_level(raw),
            "module_dir": str(module_dir),
        }
        self._framework_params = {
            key: hp.decode(value)
            for key, value in raw.items()
            if key.startswith("sagemaker_") and key not in TOOLKIT_KEYS
        }
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
                "hyperparameters": config.user_values,
                "input_data_config": dict(config.channels),
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
        inputs = {"channels": sorted(self._channels), "input_data_config": dict(config.channels)}
        out += _named(
            inputs | {f"channel_{name}": path for name, path in self._channels.items()}, "inputdataconfig.json"
        )
        out += _named(
            {
                "hps": config.user_values,
                **self._from_hyperparameters,
                "framework_params": self._framework_params,
                **{f"hp_{key}": value for key, value in config.user_values.items()},
            },
            "hyperparameters.json",
        )
        out += _named({"framework_module": self._framework_module}, "SAGEMAKER_TRAINING_MODULE")
        out += _named({"user_args": list(entry.args), **self._from_entry}, entry.source)
        out += [Variable("SAGEMAKER_JOB_NAME", config.job_name, "job name"), _region(config)]
        v3 = {
            "source_dir": entry.cwd,
            "entry_script": program(config),
            "input_data_dir": str(config.paths.input / "data"),
            "output_failure": str(config.paths.failure),
            "host_count": len(config.resources.hosts),
        }
        return _fitting(_with_aliases([*out, *_named(v3, "SageMaker SDK v3's name")]), "JOB")

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
            groups = _distribution_groups(self._config.hyperparameters, group)
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
        return _fitting(out, "HOST")
