"""Task specifications and requests for tests, from words of a command line and the text of a job file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from algorun.common import REQUEST_FORMAT
from algorun_client.files.archive import Archive
from algorun_client.files.inputs import HashedFile
from algorun_client.request.model import Request
from algorun_client.submit.assemble.assemble import assemble
from algorun_client.submit.look_up.facts import Facts
from algorun_client.submit.read import job_file, layers, make_spec
from algorun_client.submit.read.material import Material
from algorun_client.submit.read.program import started, with_long_arguments
from algorun_client.submit.read.spec import SourceKind, TaskSpec

FOLDER = "/home/me/vision"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/algorun:0.2.0"
FACTS = Facts(
    role_arn="arn:aws:iam::123456789012:role/service-role/SageMakerRole",
    bucket="sagemaker-eu-west-1-123456789012",
    image=f"{IMAGE.rsplit(':', 1)[0]}@sha256:{'0' * 64}",
    image_format=REQUEST_FORMAT,
)
NAMES = ("train.py", "package/__init__.py", "package/main.py", "download.sh")


def spec(*words: str, toml: str = "", environ: dict[str, str] | None = None, **options: object) -> TaskSpec:
    """`words`: the program. `options`: keys of the job file as flags; tables as lists of NAME=VALUE."""
    flags = layers.Layer(
        {
            key: layers.Given(f"--{key.replace('_', '-')}", value, FOLDER)
            for key, value in options.items()
            if key not in layers.TABLES
        },
        {
            key: layers.named_values(key, layers.TABLES[key], value, FOLDER)
            for key, value in options.items()
            if key in layers.TABLES
        },
    )
    file = job_file.parse(toml.encode(), "algorun.toml", FOLDER) if toml else job_file.JobFile()
    return make_spec.make(file, flags, words, folder=FOLDER, environ=environ or {})


def request(
    task: TaskSpec,
    facts: Facts = FACTS,
    number: int | None = 1,
    names: tuple[str, ...] = NAMES,
    commit: str = "",
    **files: list[str],
) -> Request:
    """The request of a task. `files`: the file names of its local inputs."""
    if not task.image:
        task = dataclasses.replace(task, image=IMAGE)
    if not task.resources.instance and not task.resources.groups:
        task = dataclasses.replace(task, resources=dataclasses.replace(task.resources, instance="ml.m5.xlarge"))
    run = with_long_arguments(started(task.program, names), task.kind)
    code = Archive(sha256="c0de" * 16, size=1234, data=b"") if names or run.added else None
    local = {each.name: files.get(each.name, ["a"]) for each in task.inputs if each.kind is SourceKind.FOLDER}
    inputs = {
        name: [HashedFile(name=file, path=Path(file), size=1, sha256="da7a" * 16) for file in listed]
        for name, listed in local.items()
    }
    return assemble(task, facts, Material(started=run, code=code, inputs=inputs, commit=commit), number)
