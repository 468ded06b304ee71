"""Readers of what describes a job: the platform's files, hyperparameters, the environment, the command line."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
from pathlib import Path
from unittest import mock

from algorun.commands import command_line
from algorun.common import codec
from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import fields
from algorun.job import config, job_input, modeltrainer, usercode
from algorun.job import hyperparameters as hp
from algorun.job.hyperparameter_groups import Hyperparameters
from algorun.job.limits import ControlSettings, Limits
from algorun.job.paths import Paths
from algorun.job.request import LaunchRequest, request
from algorun.job.setting_values import NEVER_S
from algorun.job.settings import WAITS
from algorun.job.values import Sourced
from algorun.machine.probe import Machine
from algorun.plan import cluster, plan, render
from algorun.plan.engines.base import Programs
from algorun.plan.plan import Plan
from tests.contract import trees

from . import mutations
from .reader import PART, Reader, parts, scratch

MOST_RANKS = 64  # of a plan that is made here: 4,096 slots on each of 4,096 hosts are allowed, and slow
FILES = (
    "input/config/resourceconfig.json",
    "input/config/hyperparameters.json",
    "input/config/inputdataconfig.json",
    "input/data/sm_drivers/sourcecode.json",
    "input/data/sm_drivers/distributed.json",
)
MACHINE = Machine(
    Sourced(0, "/dev/nvidia*"), Sourced(8, "mask"), ("eth0", "lo"), "eth0", (), 1 << 36, 1 << 33, "3.11.7", {"torch": "2.13.0"}
)  # fmt: skip
PROGRAMS = Programs("python", "/algorun")
SOURCE_CODE = {"source_dir": "s3://b/c", "entry_script": "train.py", "command": "exec algorun train"}
DISTRIBUTED = (
    {},
    {"smp": None, "process_count_per_node": 2},
    {"mpi_additional_options": ["-x", "A=1"], "process_count_per_node": ""},
)
OPTIONS = {
    "job": ["train", "run", "plan", "simulate", "doctor", "--engine", "native", "mpirun", "-j", "2x4", "--slots", "2"],
    "more": ["--per-host", "--share-nothing", "--cwd", "-m", "--json", "--hosts", "--channel", "a=/tmp", "--out", "-h"],
}
WORDS = [
    *OPTIONS["job"],
    *OPTIONS["more"],
    "--resume",
    "--version",
    "ddp",
    "x.py",
    "-j2x2",
    "--slots=3",
    "metric-definitions",
]


PARSER = functools.cache(command_line.parser)  # 4 ms to make


def environment(data: bytes) -> dict[str, str]:
    """An environment as a process can have it: no zero bytes, no `=` in a name."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    pairs = ((str(key), str(value)) for key, value in found.items() if not isinstance(value, (list, dict)))
    usable = {key.replace("\0", ""): value.replace("\0", "") for key, value in pairs if "=" not in key}
    return {os.fsdecode(_bytes(key)): os.fsdecode(_bytes(value)) for key, value in usable.items() if key}


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def base() -> Path:
    """A job folder with code of every kind."""
    folder = scratch() / "job"
    if not folder.exists():
        for name in ("input/config", "input/data/sm_drivers", "input/data/code", "code/package"):
            (folder / name).mkdir(parents=True)
        for name in (
            "code/train.py",
            "code/run.sh",
            "code/train",
            "code/package/__main__.py",
            "input/data/code/train.py",
        ):
            (folder / name).write_text("#!/bin/sh\n")
    return folder


def read_job(data: bytes) -> None:
    """Reads a whole job and plans it. Only a UserError may come out; the plan survives JSON."""
    folder = base()
    *texts, raw = parts(data, len(FILES) + 1)
    for name, content in zip(FILES, texts, strict=True):
        if content:
            (folder / name).write_bytes(content)
        else:
            (folder / name).unlink(missing_ok=True)
    environ = {**environment(raw), "SAGEMAKER_BASE_DIR": str(folder)}
    try:
        job = config.read_config(LaunchRequest(from_job=True), environ)
        slots = cluster.assumed_slots(job, cluster.own_slots(job, MACHINE))
        if sum(each.value for each in slots.values()) > MOST_RANKS:
            return
        made = plan.make(job, cluster.resolve(job, slots), MACHINE, PROGRAMS)
    except UserError as error:
        one_line(error)
        return
    assert codec.from_json(Plan, json.loads(json.dumps(codec.to_json(made)))) == made
    render.plan_text(made)


def one_line(error: UserError) -> None:
    """A refusal names its place and its fault."""
    assert error.where or error.what
    assert 0 < error.code < 128


def job_seeds() -> list[bytes]:
    found = []
    for tree in trees.TREES:
        raw = dict(tree.hyperparameters)
        if tree.program is not None:
            raw.setdefault("sagemaker_program", json.dumps(tree.program))
        resources = {"current_host": tree.current, "hosts": list(tree.hosts), **tree.resources}
        files = [json.dumps(value).encode() for value in (resources, raw, tree.channels)]
        found.append(PART.join([*files, b"", b"", json.dumps(dict(tree.environ)).encode()]))
    own = {"algorun_engine": "torchrun", "algorun_slots": "2", "algorun_args": '["--a", 1]', "algorun_cwd": "package"}
    newer = {"algorun_args_file": "args.json", "algorun_extract": '["training"]'}
    environ = {
        "ALGORUN_GATE_S": "5",
        "ALGORUN_ADDRESSES": "algo-1=127.0.0.1",
        "ALGORUN_CONTROL_PORT": "29600",
        "ALGORUN_SLOTS": "2",
    }
    described = {"training": {"TrainingInputMode": "File"}}
    asked = {"ALGORUN_REQUEST_FORMAT": "1", "ALGORUN_EXTRACT": '["training"]'}
    resources = {"current_host": "algo-1", "hosts": ["algo-1"]}
    files = [json.dumps(value).encode() for value in (resources, newer, described, {}, {}, asked)]
    found.append(PART.join(files))
    groups = {"sagemaker_distribution_instance_groups": '["gpu"]', "sagemaker_mpi_enabled": "true"}
    for distributed in DISTRIBUTED:
        resources = {"current_host": "algo-1", "hosts": ["algo-1", "algo-2"], "instance_groups": list(trees.GROUPS)}
        files = [
            json.dumps(value).encode()
            for value in (resources, {**own, **groups}, {}, SOURCE_CODE, distributed, environ)
        ]
        found.append(PART.join(files))
    return found


def read_hyperparameters(data: bytes) -> None:
    """Every way in which a hyperparameter is read."""
    try:
        raw = codec.loads(data)
    except ValueError:
        raw = data.decode("utf-8", "replace")
    if not isinstance(raw, dict):
        raw = {"key": raw}
    for key in raw:
        for read in (lambda: hp.flag(raw, key), lambda: hp.text(raw, key), lambda: hp.argument(hp.decode(raw[key]))):  # noqa: B023
            with contextlib.suppress(UserError):
                read()
    for given in (raw, {"algorun_args": next(iter(raw.values()), "")}):
        with contextlib.suppress(UserError):
            hp.argv(Hyperparameters.parse(given).user)
        with contextlib.suppress(UserError):
            modeltrainer.argv(Hyperparameters.parse(given).user)


def hyperparameter_seeds() -> list[bytes]:
    return [json.dumps(dict(tree.hyperparameters)).encode() for tree in trees.TREES if tree.hyperparameters]


def read_command_line(data: bytes) -> None:
    """argv, its words separated by zero bytes. -h and --version end with 0."""
    argv = [os.fsdecode(word) for word in data.split(b"\0")]
    code: object = 0
    try:
        with contextlib.redirect_stdout(io.StringIO()), mock.patch.object(command_line, "parser", PARSER):
            options = command_line.parse(argv)
            if options.command in ("run", "plan", "simulate"):
                request(options)
    except UserError as error:
        one_line(error)
    except SystemExit as end:
        code = end.code
    assert not code


def command_lines() -> list[bytes]:
    lines = ("train", "train --lr 1", "run -j 1x2 x.py --slots 9", "run --engine mpirun -m package a", "plan --json --hosts 16 --slots 8 ddp",
             "simulate -j 2x2 --channel a=/tmp --out x ddp --lr 1", "doctor --json", "run --cwd /tmp -- x.py", "--version")  # fmt: skip
    return [line.replace(" ", "\0").encode() for line in lines]


def read_environment(data: bytes) -> None:
    """Limits, addresses and ports that the environment sets."""
    environ = environment(data)
    with contextlib.suppress(UserError):
        limits = Limits.of(environ)
        assert all(
            0 < getattr(limits, name) < NEVER_S for name in (each.name for each in fields(Limits)) if name != "hang_s"
        )
        assert 0 < limits.hang_s <= NEVER_S  # "off" is never
        assert limits.heartbeat_s < limits.heartbeat_timeout_s
    with contextlib.suppress(UserError):
        for name, address in ControlSettings.of(environ).addresses.items():
            assert name
            address.encode("ascii")
            assert address.isprintable()
    with contextlib.suppress(UserError):
        broken = config.broken(environ, job_input.read_resources(Paths(Path("/nowhere")), LaunchRequest()))
        assert 0 < broken.control.port < 65536


def environments() -> list[bytes]:
    every = {each.name: "2.5" for each in WAITS}
    more = {"ALGORUN_ADDRESSES": "algo-1=127.0.0.1,algo-2=::1", "ALGORUN_CONTROL_PORT": "29600", "ALGORUN_TOKEN": "x"}
    return [json.dumps({**every, **more}).encode()]


def read_code_address(data: bytes) -> None:
    """Where code comes from, and whether it is a package."""
    uri, table = parts(data, 2)
    folder = scratch() / "package"
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_bytes(table)
    name = uri.decode("utf-8", "surrogateescape")
    with contextlib.suppress(UserError):
        usercode.address(name)
    usercode.is_package(folder, name)


CODE_ADDRESSES = [
    PART.join((uri, table))
    for uri, table in (
        (b"s3://bucket/sourcedir.tar.gz", b'[project]\nname = "x"\n'),
        (b"file:///tmp/x%20y", b'[build-system]\nrequires = ["a"]\n'),
        (b"/opt/ml/code", b"[tool.ruff]\nline-length = 120\na = [1, {b = 2}]\nd = 2026-01-01\n"),
    )
]


READERS = [
    Reader("job-files", read_job, job_seeds, mutations.of_parts(*[mutations.as_json] * 6), 200),
    Reader("hyperparameters", read_hyperparameters, hyperparameter_seeds, mutations.as_json, 600),
    Reader("command-line", read_command_line, command_lines, mutations.words(b"\0", WORDS), 200),
    Reader("environment", read_environment, environments, mutations.as_json, 800),
    Reader(
        "code-address",
        read_code_address,
        lambda: CODE_ADDRESSES,
        mutations.of_parts(mutations.raw, mutations.raw),
        1000,
    ),
]
