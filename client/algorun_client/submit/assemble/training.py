"""The arguments of CreateTrainingJob. Pure."""

from __future__ import annotations

import json

from algorun.common.errors import UserError
from algorun_client.request.model import Json
from algorun_client.submit.read import program
from algorun_client.submit.read.program import text_value

from . import parts, rules
from .parts import Execution

ISOLATED_CODE = f"/opt/ml/input/data/{rules.CODE_CHANNEL}"  # where a host without network finds the code archive
OWN_PREFIX = "algorun_"
OWN_KEYS = ("sagemaker_program", "sagemaker_submit_directory")  # hyperparameters that PROGRAM and --code stand for


def create(execution: Execution) -> dict[str, Json]:
    """The arguments, without the request's identity. Raises UserError."""
    spec = execution.spec
    stopping: dict[str, Json] = {"MaxRuntimeInSeconds": spec.resources.max_run_s}
    if spec.resources.max_wait_s is not None:
        stopping["MaxWaitTimeInSeconds"] = spec.resources.max_wait_s
    made: dict[str, Json] = {
        "TrainingJobName": execution.job,
        "AlgorithmSpecification": {
            "TrainingImage": execution.image,
            "TrainingInputMode": "File",
            "MetricDefinitions": parts.metrics(spec)[0],
        },
        "RoleArn": execution.role,
        "HyperParameters": _hyperparameters(execution),
        "OutputDataConfig": {"S3OutputPath": execution.address.output(execution.number), **parts.kms(spec, "KmsKeyId")},
        "CheckpointConfig": {"S3Uri": execution.address.state},
        "ResourceConfig": _resources(execution),
        "StoppingCondition": stopping,
        "Environment": parts.environment(spec),
    }
    if inputs := _inputs(execution):
        made["InputDataConfig"] = inputs
    if spec.tensorboard:
        made["TensorBoardOutputConfig"] = {
            "S3OutputPath": execution.address.output(execution.number),
            "LocalPath": parts.TENSORBOARD,
        }
    if spec.launch.hold_s is not None:  # the way in to a host that is held
        made["RemoteDebugConfig"] = {"EnableRemoteDebug": True}
    if spec.resources.spot:
        made["EnableManagedSpotTraining"] = True
    if spec.resources.retries is not None:
        made["RetryStrategy"] = {"MaximumRetryAttempts": spec.resources.retries}
    if spec.network.isolation:
        made["EnableNetworkIsolation"] = True
    if vpc := parts.vpc(spec):
        made["VpcConfig"] = vpc
    if spec.tags:
        made["Tags"] = parts.tags(spec)
    return made


def _inputs(execution: Execution) -> list[Json]:
    """The channels. A host without network cannot fetch the code, so SageMaker brings it as one more channel."""
    made = list(execution.inputs)
    if execution.spec.network.isolation and execution.code_uri:
        source: Json = {
            "S3DataType": "S3Prefix",
            "S3Uri": execution.code_uri,
            "S3DataDistributionType": "FullyReplicated",
        }
        made.append({"ChannelName": rules.CODE_CHANNEL, "DataSource": {"S3DataSource": source}})
    return made


def _hyperparameters(execution: Execution) -> dict[str, Json]:
    spec, started, launch = execution.spec, execution.material.started, execution.spec.launch
    made: dict[str, Json] = {"sagemaker_program": text_value(started.program)}
    if execution.code_uri:
        isolated = f"{ISOLATED_CODE}/{execution.code_file}"
        made["sagemaker_submit_directory"] = isolated if spec.network.isolation else execution.code_uri
    if program.ARGS_FILE in started.added:
        made["algorun_args_file"] = program.ARGS_FILE
    elif started.args or not spec.hyperparameters:  # without words the launcher makes them from the hyperparameters
        made["algorun_args"] = started.args_json
    if launch.engine:
        made["algorun_engine"] = launch.engine
    if launch.slots is not None:
        made["algorun_slots"] = str(launch.slots)
    if launch.per_gpu:
        made["algorun_per_gpu"] = "true"
    if launch.per_host:
        made["algorun_per_host"] = "true"
    if launch.restarts is not None:
        made["algorun_restarts"] = str(launch.restarts)
    if launch.cwd:
        made["algorun_cwd"] = text_value(launch.cwd)
    if execution.extracted:
        made["algorun_extract"] = json.dumps(execution.extracted)
    for name, value in spec.hyperparameters.items():
        if name.startswith(OWN_PREFIX) or name in OWN_KEYS:
            option = (
                "PROGRAM and --code" if name in OWN_KEYS else f"--{name.removeprefix(OWN_PREFIX).replace('_', '-')}"
            )
            raise UserError(f"--hyperparameter {name}", "algorun sets it from the options", fix=f"use {option}")
        made[name] = value
    return made


def _resources(execution: Execution) -> dict[str, Json]:
    spec, resources = execution.spec, execution.spec.resources
    made: dict[str, Json] = {}
    if resources.groups:
        made["InstanceGroups"] = [
            {"InstanceGroupName": each.name, "InstanceType": each.instance, "InstanceCount": each.hosts}
            for each in resources.groups
        ]
    else:
        made["InstanceType"], made["InstanceCount"] = resources.instance, resources.hosts
    if not all(rules.has_fixed_storage(instance) for instance in resources.instances):
        made["VolumeSizeInGB"] = resources.volume_gb or parts.DEFAULT_VOLUME_GB
    made.update(parts.volume_kms(spec))
    if resources.keep_alive_s is not None:
        made["KeepAlivePeriodInSeconds"] = resources.keep_alive_s
    return made
