"""The arguments of CreateProcessingJob. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from algorun_client.request.model import Json
from algorun_client.submit.read import program

from . import parts, rules
from .parts import Execution

ROOT = "/opt/ml/processing"
EXTRACT_NAME = "ALGORUN_EXTRACT"


def create(execution: Execution) -> dict[str, Json]:
    """The arguments, without the request's identity."""
    spec = execution.spec
    environment = parts.environment(spec)
    if execution.extracted:
        environment[EXTRACT_NAME] = json.dumps(execution.extracted)
    made: dict[str, Json] = {
        "ProcessingJobName": execution.job,
        "AppSpecification": {"ImageUri": execution.image, "ContainerEntrypoint": _entrypoint(execution)},
        "RoleArn": execution.role,
        "ProcessingOutputConfig": {
            "Outputs": _outputs(execution.address.output(execution.number), spec.outputs),
            **parts.kms(spec, "KmsKeyId"),
        },
        "ProcessingResources": {
            "ClusterConfig": {
                "InstanceType": spec.resources.instance,
                "InstanceCount": spec.resources.hosts,
                "VolumeSizeInGB": spec.resources.volume_gb or parts.DEFAULT_VOLUME_GB,
                **parts.volume_kms(spec),
            }
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": spec.resources.max_run_s},
        "Environment": environment,
    }
    inputs = list(execution.inputs)
    if execution.code_uri:
        inputs.append(input_of(rules.CODE_CHANNEL, execution.code_uri, shard=False))
    if inputs:
        made["ProcessingInputs"] = inputs
    network: dict[str, Json] = {"EnableNetworkIsolation": True} if spec.network.isolation else {}
    if vpc := parts.vpc(spec):
        network["VpcConfig"] = vpc
    if network:
        made["NetworkConfig"] = network
    if spec.tags:
        made["Tags"] = parts.tags(spec)
    return made


def input_of(name: str, uri: str, *, shard: bool) -> Json:
    """A ProcessingInput."""
    return {
        "InputName": name,
        "S3Input": {
            "S3Uri": uri,
            "LocalPath": f"{ROOT}/input/{name}",
            "S3DataType": "S3Prefix",
            "S3InputMode": "File",
            "S3DataDistributionType": "ShardedByS3Key" if shard else "FullyReplicated",
        },
    }


def _entrypoint(execution: Execution) -> list[Json]:
    """`algorun run ..`: a processing job has no hyperparameters."""
    started, launch = execution.material.started, execution.spec.launch
    words = ["algorun", "run"]
    if execution.code_uri:
        words += ["--code", f"{ROOT}/input/{rules.CODE_CHANNEL}/{execution.code_file}"]
    if launch.engine:
        words += ["--engine", launch.engine]
    if launch.slots is not None:
        words += ["--slots", str(launch.slots)]
    if launch.per_gpu:
        words.append("--per-gpu")
    if launch.per_host:
        words.append("--per-host")
    if launch.share_nothing:
        words.append("--share-nothing")
    if launch.restarts is not None:
        words += ["--restarts", str(launch.restarts)]
    if launch.cwd:
        words += ["--cwd", launch.cwd]
    args: Sequence[str] = started.args
    if program.ARGS_FILE in started.added:
        words += ["--args-file", program.ARGS_FILE]
        args = ()
    return [*words, *(["-m"] if started.module else []), started.program, *args]


def _outputs(folder: str, names: Sequence[str]) -> list[Json]:
    """One output for the whole folder, or one for each name."""
    pairs = [(name, f"/{name}") for name in names] or [(rules.WHOLE_OUTPUT, "")]
    return [
        {
            "OutputName": name,
            "S3Output": {"S3Uri": f"{folder}{below}", "LocalPath": f"{ROOT}/output{below}", "S3UploadMode": "EndOfJob"},
        }
        for name, below in pairs
    ]
