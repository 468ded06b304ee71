"""Whether somebody has said how many ranks each host gets, where money depends on it. Pure.

A program of the user's has one rank per host if nobody says anything, as under AWS's SDKs. On hosts with several GPUs the
others then idle, unless the program itself starts a process for each: no look at its sources can tell which.
"""

from __future__ import annotations

from collections.abc import Mapping

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import replace
from algorun.job import job_input, jobfiles, launch
from algorun.job.entry import Entry
from algorun.job.hyperparameter_groups import Hyperparameters
from algorun.job.launch import Launch
from algorun_client.common.instance_units import gpus
from algorun_client.request.model import Json, Kind
from algorun_client.submit.read.spec import HostChoice, Where

from .parts import Execution

CHOICES = ("--per-gpu", "--per-host")


class Undecided(UserError):
    """Nobody has said how many ranks each host gets."""


def check(execution: Execution, create: Mapping[str, Json]) -> None:
    """Raises Undecided for a training job on AWS that would leave GPUs without a rank, unless that was asked for.

    `create`: the arguments of CreateTrainingJob.
    """
    spec, resources = execution.spec, execution.spec.resources
    if spec.where is not Where.AWS or spec.kind is not Kind.TRAINING or spec.unfilled:
        return
    found = [(gpus(each.instance) or 0, each.instance, each.hosts) for each in resources.by_type]
    most, instance, _ = max(found)
    if most < 2 or not launch_of(execution, create).is_default:
        return
    spread, count = sum(max(each, 1) * of_group for each, _, of_group in found), resources.all_hosts
    raise Undecided(
        "--instance-group" if resources.groups else "--instance",
        f"{instance} has {most} GPUs, and nothing says how many ranks a host gets",
        allowed=f"--per-gpu ({spread} ranks), or --per-host ({count} rank{'s'[: count != 1]}, for a program that itself uses all "
        "GPUs of its host); also --slots, -j, --engine",
        fix="say which, in the command or as `per_gpu = true` or `per_host = true` in the job file",
    )


def ranks(execution: Execution, create: Mapping[str, Json], hosts: HostChoice) -> int:
    """The number of ranks of a program on these hosts. Raises UserError if it is unknown how many GPUs they have."""
    slots = launch_of(execution, create).slots
    of_host = slots.value if slots is not None else gpus(hosts.instance)
    if of_host is None:
        raise UserError(
            "--instance",
            f"nobody knows how many GPUs {hosts.instance} has, and so how many ranks a host gets",
            fix="say it: --slots N",
        )
    return max(of_host, 1) * hosts.hosts


def launch_of(execution: Execution, create: Mapping[str, Json]) -> Launch:
    """How the launcher would start the ranks. It is asked itself. Raises UserError for what it would refuse."""
    environment, hyperparameters = create["Environment"], create["HyperParameters"]
    assert isinstance(environment, dict)
    assert isinstance(hyperparameters, dict)
    started = execution.material.started
    given = job_input.nothing(
        {name: str(value) for name, value in environment.items()},
        jobfiles.imagined(execution.spec.resources.all_hosts, "--hosts"),
    )
    given = replace(given, hyperparameters=Hyperparameters.parse(hyperparameters))
    entry = Entry("bundled" if started.is_bundled else "script", started.program, (), "/", "PROGRAM")
    return launch.decide(given, entry)
