"""The variables SSM_* of simple-sagemaker, so that command lines written for it run unchanged. Pure.

Source: simple-sagemaker 0.9.24, worker_toolkit/worker_lib.py and sm_task.py. It sets SSM_STATE, SSM_INSTANCE_STATE,
SSM_NUM_NODES, SSM_HOST_RANK, SSM_TENSORBOARD_DIR, and in processing tasks SSM_OUTPUT. Its workers read everything else
(channels, GPUs, log level) from SM_* variables. SSM_OUTPUT in training jobs and SSM_CHANNEL_* are ours.
"""

from __future__ import annotations

from algorun.job.config import JobConfig

from .cluster import Host
from .rank_env import Variable
from .sagemaker_env import KEPT, named, with_aliases

STATE, INSTANCE_STATE, OUTPUT = "SSM_STATE", "SSM_INSTANCE_STATE", "SSM_OUTPUT"
SOURCE = "simple-sagemaker's name"


def shared(config: JobConfig) -> list[Variable]:
    """The variables that are equal on all hosts. SSM_STATE and SSM_OUTPUT of the environment are kept."""
    paths = config.paths
    output = paths.processing / "output" if config.input.processing else paths.output_data
    folders = {name: channel.folder for name, channel in config.input.channels.items()}
    return [
        _kept(config, STATE, config.input.state),
        _kept(config, OUTPUT, str(output)),
        Variable("SSM_NUM_NODES", str(len(config.resources.hosts)), SOURCE),
        Variable("SSM_TENSORBOARD_DIR", str(paths.output / "tensorboard"), SOURCE),
        *with_aliases(named(folders, "folder of the channel", prefix="SSM_CHANNEL_")),
    ]


def of_host(config: JobConfig, host: Host) -> list[Variable]:
    """The variables that differ from host to host."""
    return [
        Variable("SSM_HOST_RANK", str(host.node_rank), SOURCE),
        Variable(INSTANCE_STATE, config.input.state_of(host.name), SOURCE),
    ]


def needs_instance_state(config: JobConfig) -> bool:
    """True if the program relies on the state folder of its host: it starts there, its command line names the variable,
    or the environment sets SSM_STATE.

    Other programs get no folder. Many resume from a checkpoint if their checkpoint folder has any entry.
    """
    starts_there = config.entry.cwd == config.input.state_of(config.resources.current_host)
    return starts_there or bool(config.environ.get(STATE)) or any(INSTANCE_STATE in word for word in config.entry.args)


def _kept(config: JobConfig, name: str, value: str) -> Variable:
    given = config.environ.get(name)
    return Variable(name, given, KEPT) if given else Variable(name, value, SOURCE)
