"""The fingerprint of an execution, from its options, files and facts. Pure."""

from __future__ import annotations

import hashlib
import json

from algorun.common.secret_names import is_secret
from algorun_client.request.fingerprint import (
    CODE,
    ENVIRONMENT,
    IMAGE,
    INPUT,
    JOB,
    OPTIONS,
    UPSTREAM,
    Fingerprint,
    rows,
)
from algorun_client.request.model import Json, TaskAddress
from algorun_client.submit.look_up.facts import Facts
from algorun_client.submit.read.material import Material
from algorun_client.submit.read.spec import InputSpec, SourceKind

from .parts import Execution

TOKEN_NAME = "ALGORUN_TOKEN"  # best a new one for each job


def of_execution(execution: Execution) -> Fingerprint:
    """The fingerprint of an execution. It is the same for all executions of one request.

    Left out is what changes no result: role, tags, metrics, network, keys, disk, spot, time limits, the token of the hosts.
    """
    spec, facts, material = execution.spec, execution.facts, execution.material
    groups: dict[str, dict[str, str]] = {
        OPTIONS: _options(execution),
        IMAGE: {IMAGE: facts.image_id or execution.image},
        ENVIRONMENT: {
            name: _hash(execution.address, name, value)
            for name, value in sorted(spec.env.items())
            if name != TOKEN_NAME
        },
    }
    if material.code:
        groups[CODE] = rows(sorted(material.code.contents.items()))
    unknown: list[str] = []
    for each in spec.inputs:
        found = _input(each, facts, material)
        if found is None:
            why = "is a file system, whose files are not compared" if each.file_system else "is not read"
            unknown.append(f"{INPUT}{each.name}: {facts.unread.get(each.source, why)}")
        groups[f"{INPUT}{each.name}"] = found or {}
    return Fingerprint({name: table for name, table in groups.items() if table}, tuple(unknown))


def _options(execution: Execution) -> dict[str, str]:
    """What was asked for, where it is not the default: an option that comes with a later version changes nothing."""
    spec = execution.spec
    program, launch, resources = spec.program, spec.launch, spec.resources
    groups = [f"{each.name}={each.instance}x{each.hosts}" for each in resources.groups]
    values: dict[str, Json] = {
        "kind": spec.kind.value,
        "module" if program.module else "program": program.name,
        "arguments": list(program.args),
        "shell": program.shell,
        "engine": launch.engine,
        "slots": launch.slots,
        "per_gpu": launch.per_gpu,
        "per_host": launch.per_host,
        "share_nothing": launch.share_nothing,
        "cwd": launch.cwd,
        "instance": "" if groups else resources.instance,
        "hosts": resources.all_hosts,
        "instance_groups": list(groups),
        "out": list(spec.outputs),
    }
    made = {name: json.dumps(value) for name, value in values.items() if value not in (None, False, "", [])}
    for name, text in sorted(spec.hyperparameters.items()):
        made[f"hyperparameters.{name}"] = _hash(execution.address, name, text) if is_secret(name) else json.dumps(text)
    for each in spec.inputs:
        made[f"{INPUT}{each.name}"] = json.dumps(_asked(each))
    return made


def _asked(each: InputSpec) -> str:
    """An input as it is written. The path of a local folder does not count: another machine has another one."""
    source = "folder" if each.kind is SourceKind.FOLDER else each.source
    words = [word for word in ("shard", "fastfile", "extract") if getattr(each, word)]
    return ",".join([source, *words])


def _input(each: InputSpec, facts: Facts, material: Material) -> dict[str, str] | None:
    """The rows of an input; None if they are unknown."""
    if each.kind is SourceKind.FOLDER:
        files = material.inputs[each.name]
        return rows((file.name, file.sha256) for file in sorted(files, key=lambda file: file.name))
    if each.source in facts.contents:
        return dict(facts.contents[each.source])
    upstream = facts.upstreams.get(each.task.task) if each.task else None
    # The job counts too: after `--force` what it left may differ, although the same was asked for.
    return {JOB: upstream.job, UPSTREAM: upstream.fingerprint} if upstream else None


def _hash(address: TaskAddress, name: str, value: str) -> str:
    """Of a value that must not stand in the bucket. Equal values of two tasks or names have different hashes."""
    return hashlib.sha256(f"{address.uri}\0{name}\0{value}".encode("utf-8", "surrogateescape")).hexdigest()
