"""Rules between options that SageMaker's limits do not state. Each refusal names the option and the fix. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from algorun.common.bounded_search import compiled
from algorun.common.errors import UserError
from algorun_client.request.model import HOLD, Kind
from algorun_client.submit.look_up.facts import Facts
from algorun_client.submit.read.spec import InputSpec, ResourceSpec, SourceKind, TaskSpec, Where
from algorun_client.submit.read.values import duration_text

CODE_CHANNEL = "code"  # the input that brings the code archive where the launcher cannot fetch it
WHOLE_OUTPUT = "output"  # the output of a processing task that names none: its whole folder
MOST_METRICS = 40
HOUR_S = 3600
OWN_VARIABLES = ("ALGORUN_REQUEST_FORMAT", "ALGORUN_REQUEST_ID", "ALGORUN_EXTRACT")
# Families of instances with disks of their own: SageMaker attaches no volume. GPU and Trainium families, and those with
# a `d` after the generation (m5d, r6gd). https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html
FIXED_STORAGE = re.compile(
    r"ml\.(?:g4dn|g5|g6|g6e|gr6|g7|g7e|p3dn|p4d|p4de|p5|p5e|p5en|p6[a-z0-9-]*|trn1|trn1n|trn2|[a-z]+\d+[a-z]*d[a-z]*)\..+"
)


def has_fixed_storage(instance: str) -> bool:
    """True if an instance type has disks of its own, so that a volume size means nothing."""
    return FIXED_STORAGE.fullmatch(instance) is not None


def check(spec: TaskSpec, facts: Facts, files: Mapping[str, int], *, has_code: bool) -> None:
    """Raises UserError for the first rule that is broken. `files`: the number of files of each local input."""
    _resources(spec)
    _network(spec)
    _cost(spec)
    _launch(spec)
    _tables(spec)
    if spec.kind is Kind.PROCESSING:
        _processing(spec)
        _names_of_processing(spec, has_code=has_code)
    elif spec.outputs:
        raise UserError(
            "--out",
            "is for processing tasks",
            fix="write to /opt/ml/output/data or /opt/ml/model, or --kind processing",
        )
    for each in spec.inputs:
        if each.name == CODE_CHANNEL and has_code:
            raise UserError(
                each.where, f"{CODE_CHANNEL!r} is the input with the program's code", fix="choose another name"
            )
        _objects(each, facts, files, spec.resources.all_hosts)


def _resources(spec: TaskSpec) -> None:
    resources = spec.resources
    if not spec.image:
        raise UserError("--image", "no image is named", fix="--image ACCOUNT.dkr.ecr.REGION.amazonaws.com/algorun:TAG")
    if not resources.groups and not resources.instance:
        raise UserError("--instance", "no instance type is named", fix="--instance ml.g5.12xlarge")
    if resources.volume_gb is None:
        return
    if fixed := [instance for instance in resources.instances if has_fixed_storage(instance)]:
        raise UserError(
            "--volume", f"{fixed[0]} has disks of a fixed size", fix="drop --volume, or choose another instance"
        )


def _network(spec: TaskSpec) -> None:
    network = spec.network
    for given, other, missing in (
        ("--subnets", network.security_groups, network.subnets),
        ("--security-groups", network.subnets, network.security_groups),
    ):
        if other and not missing:
            raise UserError(given, "is absent, and a VPC needs subnets and security groups", fix=f"add {given}")
    mounted = [each for each in spec.inputs if each.file_system is not None]
    if mounted and not network.subnets and spec.where is Where.AWS:
        raise UserError(
            mounted[0].where, f"{mounted[0].source} is reached in its VPC only, and no subnet is named",
            fix="add --subnets and --security-groups from which the file system can be reached",
        )  # fmt: skip


def rate(resources: ResourceSpec) -> float | None:
    """What all hosts cost for one hour; None if a price is unknown."""
    if any(instance not in resources.prices for instance in resources.instances):
        return None
    return sum(resources.prices[each.instance] * each.hosts for each in resources.by_type)


def most_cost(resources: ResourceSpec) -> float | None:
    """The most that one job can cost; None if a price is unknown."""
    an_hour = rate(resources)
    return None if an_hour is None else an_hour * (resources.max_run_s + (resources.keep_alive_s or 0)) / HOUR_S


def _cost(spec: TaskSpec) -> None:
    """The most that the hosts may cost. --max-run bounds all attempts of a job together; spot instances cost less, never more."""
    resources = spec.resources
    if resources.max_cost is None or spec.where is not Where.AWS:
        return
    an_hour, most, kept_s = rate(resources), most_cost(resources), resources.keep_alive_s or 0
    if an_hour is None or most is None:
        unpriced = [instance for instance in resources.instances if instance not in resources.prices]
        raise UserError(
            "--max-cost", f"the price of {' and of '.join(unpriced)} is unknown",
            fix=f'price = {{ "{unpriced[0]}" = AMOUNT }} at the top of the job file: of one host for one hour',
        )  # fmt: skip
    if most <= resources.max_cost:
        return
    fits_s = int(resources.max_cost / an_hour * HOUR_S) - kept_s
    hosts = ", ".join(each.text for each in resources.by_type)
    kept = f" and --keep-alive {duration_text(kept_s)}" if kept_s else ""
    raise UserError(
        "--max-cost",
        f"{hosts} for --max-run {duration_text(resources.max_run_s)}{kept} may cost {most:.2f} ({an_hour:.2f} an hour)",
        allowed=f"up to {resources.max_cost:.2f}",
        fix=f"--max-run {duration_text(fits_s)}, fewer hosts, or a higher --max-cost"
        if fits_s > 0
        else "fewer hosts, or a higher --max-cost",
    )


def _launch(spec: TaskSpec) -> None:
    launch = spec.launch
    held = "--hold-on-failure" if launch.hold_s is not None else f"--env {HOLD}" if HOLD in spec.env else ""
    if held and spec.kind is Kind.PROCESSING and spec.where is Where.AWS:
        raise UserError(held, "SageMaker lets nobody into the hosts of a processing job", fix="drop it")
    if launch.hold_s is not None and spec.network.isolation:
        raise UserError(
            "--hold-on-failure", "nobody gets into hosts with --network-isolation", fix="drop one of the two"
        )
    if launch.hold_s is not None and HOLD in spec.env:
        raise UserError("--hold-on-failure", f"contradicts --env {HOLD}", fix="drop one of the two")
    for option, is_set in (("--per-host", launch.per_host), ("--share-nothing", launch.share_nothing)):
        if is_set and launch.slots not in (None, 1):
            raise UserError(option, f"contradicts {launch.slots} slots", fix="drop one of the two")
    others = (
        (launch.per_host, "--per-host", "--no-per-host"),
        (launch.share_nothing, "--share-nothing", "--no-share-nothing"),
        (launch.slots is not None, f"{launch.slots} slots", "--no-per-gpu"),
    )
    for is_set, other, without in others:
        if launch.per_gpu and is_set:
            raise UserError("--per-gpu", f"contradicts {other}", fix=f"drop one of the two, or {without}")


def _tables(spec: TaskSpec) -> None:
    if len(spec.metrics) > MOST_METRICS:
        raise UserError(
            "--metric",
            f"{len(spec.metrics)} definitions",
            allowed=f"up to {MOST_METRICS}",
            fix=f"drop {len(spec.metrics) - MOST_METRICS}",
        )
    for name, regex in spec.metrics.items():
        try:
            compiled(regex)
        except ValueError as error:
            raise UserError(
                f"--metric {name}",
                f"{regex!r} is not a regular expression: {error}",
                allowed="such as 'loss: ([0-9.]+)'",
            ) from None
    for name in spec.env:
        if name in OWN_VARIABLES:
            raise UserError(f"--env {name}", "algorun sets it", fix="drop it")
    for name in spec.tags:
        if name.lower().startswith("aws:"):
            raise UserError(
                f"--tag {name}", "AWS keeps names that begin with aws: for itself", fix="choose another name"
            )


def _processing(spec: TaskSpec) -> None:
    """What a processing job does not have."""
    resources = spec.resources
    for option, is_set in (
        ("--spot", resources.spot),
        ("--retries", resources.retries is not None),
        ("--keep-alive", resources.keep_alive_s is not None),
        ("--until-done", resources.until_done),
        ("--instance-group", bool(resources.groups)),
        ("--hyperparameter", bool(spec.hyperparameters)),
        ("--tensorboard", spec.tensorboard),
        ("--cwd state", spec.launch.cwd == "state"),
    ):
        if is_set:
            raise UserError(option, "is for training tasks", fix="drop it, or --kind training")
    for each in spec.inputs:
        if each.fastfile:
            raise UserError(each.where, "mode=fastfile is for training tasks", fix="drop it, or --kind training")
        if each.file_system is not None:
            raise UserError(
                each.where, f"{each.source}: SageMaker mounts file systems for training jobs alone",
                fix="--kind training, or copy the data to S3",
            )  # fmt: skip


def _names_of_processing(spec: TaskSpec, *, has_code: bool) -> None:
    """SageMaker wants one set of names for the inputs and outputs of a processing job."""
    inputs = {each.name for each in spec.inputs} | ({CODE_CHANNEL} if has_code else set())
    for name in spec.outputs:
        if name in inputs:
            raise UserError(
                f"--out {name}",
                "the program's code is an input of this name"
                if name == CODE_CHANNEL
                else "an input of this task has this name",
                allowed="different names for the inputs and outputs of a processing task",
                fix="choose another name",
            )
    for each in spec.inputs:
        if each.name == WHOLE_OUTPUT and not spec.outputs:
            raise UserError(
                each.where,
                f"{WHOLE_OUTPUT!r} is the name of this task's output",
                allowed="different names for the inputs and outputs of a processing task",
                fix="choose another name, or name the outputs with --out",
            )


def _objects(each: InputSpec, facts: Facts, files: Mapping[str, int], hosts: int) -> None:
    """There is something to read, and for every host if it is sharded."""
    if each.kind is SourceKind.FOLDER:
        objects = files[each.name]
    elif each.source in facts.sources:
        objects = facts.sources[each.source].objects
    else:
        return
    if not objects and each.task is not None:
        raise UserError(
            each.where,
            f"{each.source}: nothing lies in {facts.sources[each.source].uri}",
            fix=f"`algorun submit --force --task {each.task.task}` if it was removed, else correct what that task writes",
        )
    if not objects:
        raise UserError(each.where, f"{each.source} has no object", fix="check bucket, key and region")
    if each.shard and objects < hosts:
        raise UserError(
            each.where, f"shard: {objects} objects for {hosts} hosts leave paid hosts without data",
            allowed=f"{hosts} objects or more", fix=f"drop shard, take --hosts {objects}, or cut the data into more files",
        )  # fmt: skip
