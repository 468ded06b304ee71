"""Which engine, how many slots, what to run: decided from files, environment and command line."""

from __future__ import annotations

import json

import pytest

from algorun.commands import command_line
from algorun.common.errors import UserError
from algorun.job.config import LaunchRequest, prepared, read_config
from algorun.job.limits import Limits
from algorun.job.request import request
from algorun.plan import cluster
from tests.conftest import TREES, job, machine


def slots(config, gpus=0):
    return cluster.own_slots(config, machine(gpus)).value


@pytest.mark.parametrize(
    ("tree", "gpus", "engine", "count", "per_host"),
    [
        ("script", 0, "native", 1, True),
        ("script", 4, "native", 1, True),  # a plain script is one process per host, whatever GPUs there are
        ("script-2-hosts", 4, "native", 1, True),
        ("torch-distributed", 0, "torchrun", 1, False),
        ("torch-distributed", 8, "torchrun", 8, False),
        ("mpi", 4, "mpirun", 2, False),
        ("mpi-false", 0, "native", 1, True),
        ("heterogeneous", 4, "torchrun", 4, False),
        ("book-chapter", 0, "native", 1, False),
        ("book-chapter", 4, "native", 4, False),
        ("bundled-by-name", 0, "mpirun", 1, False),
    ],
)
def test_what_a_job_description_asks_for(tree, gpus, engine, count, per_host):
    config = job(tree)
    assert (config.launch.engine.value, slots(config, gpus), config.launch.per_host) == (engine, count, per_host)


@pytest.mark.parametrize(
    ("request_", "environ", "engine", "source"),
    [
        (LaunchRequest(from_job=True), {}, "torchrun", "hyperparameter sagemaker_torch_distributed_enabled"),
        (LaunchRequest(from_job=True), {"ALGORUN_ENGINE": "mpirun"}, "mpirun", "ALGORUN_ENGINE"),
        (LaunchRequest(from_job=True, engine="native"), {"ALGORUN_ENGINE": "mpirun"}, "native", "--engine"),
    ],
)
def test_an_explicit_wish_beats_the_environment_beats_the_job(request_, environ, engine, source):
    config = job("torch-distributed", request_, **environ)
    assert (config.launch.engine.value, config.launch.engine.source) == (engine, source)


@pytest.mark.parametrize(
    ("raw", "environ", "says"),
    [
        ({"sagemaker_mpi_enabled": "true", "sagemaker_torch_distributed_enabled": "true"}, {}, "are both true"),
        ({"sagemaker_parameter_server_enabled": "true"}, {}, "parameter servers are not supported"),
        ({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "0"}, {}, "'0' is not a whole number|0 is not a whole"),
        ({}, {"ALGORUN_SLOTS": "0"}, "ALGORUN_SLOTS: '0' is not a whole number from 1"),
        ({}, {"ALGORUN_SLOTS": "many"}, "ALGORUN_SLOTS: 'many'"),
        ({}, {"ALGORUN_ENGINE": "slurm"}, "'slurm' is not an engine; allowed: native, torchrun, mpirun"),
        ({}, {"ALGORUN_GATE_S": "-1"}, "ALGORUN_GATE_S: '-1' is not a positive number"),
        ({}, {"ALGORUN_GATE_S": "nan"}, "not a positive number"),
        ({}, {"ALGORUN_CONTROL_PORT": "70000"}, "ALGORUN_CONTROL_PORT"),
        ({}, {"ALGORUN_ADDRESSES": "algo-1"}, "ALGORUN_ADDRESSES"),
    ],
)  # fmt: skip
def test_bad_wishes_are_refused_by_name(tmp_path, raw, environ, says):
    import json

    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text('{"hosts": ["a"], "current_host": "a"}')
    (folder / "hyperparameters.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match=says):
        read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(tmp_path), **environ})


def test_no_job_description_is_a_single_host(tmp_path):
    config = read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert config.resources.hosts == ("algo-1",)
    assert (config.entry.kind, config.entry.target) == ("bundled", "ddp")


def test_half_a_job_description_is_an_error(tmp_path):
    (tmp_path / "input" / "config").mkdir(parents=True)
    (tmp_path / "input" / "config" / "hyperparameters.json").write_text("{}")
    with pytest.raises(UserError, match=r"resourceconfig.json: the file is missing"):
        read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(tmp_path)})


def test_the_layout_must_fit_the_hosts():
    with pytest.raises(UserError, match=r"-j: asks for 4 hosts, but resourceconfig.json names 2"):
        job("torch-distributed", LaunchRequest(from_job=True, layout=(4, 2)))


def test_a_layout_names_the_hosts_that_hosts_may_name_again():
    for words, hosts in ((["-j", "3x2"], 3), (["-j", "3x2", "--hosts", "3"], 3), (["--hosts", "3"], 3), ([], None)):
        assert request(command_line.parse(["plan", *words, "train.py"])).imagine_hosts == hosts
    with pytest.raises(UserError, match="--hosts: 2 contradicts -j 3x2; fix: drop one of the two"):
        request(command_line.parse(["plan", "-j", "3x2", "--hosts", "2", "train.py"]))


def test_per_host_contradicts_slots():
    with pytest.raises(UserError, match="--per-host"):
        job("script", LaunchRequest(from_job=True, per_host=True, slots=2))


@pytest.mark.parametrize(
    ("tree", "request_", "environ", "gpus", "expected"),
    [
        ("script-2-hosts", LaunchRequest(from_job=True, per_gpu=True), {}, 4, (4, False, False)),
        (
            "script-2-hosts",
            LaunchRequest(from_job=True, per_gpu=True),
            {},
            0,
            (1, False, False),
        ),  # no GPU: one rank per host
        ("script-2-hosts", LaunchRequest(from_job=True, per_gpu=True), {"ALGORUN_SLOTS": "2"}, 4, (4, False, False)),
        ("script-2-hosts", LaunchRequest(from_job=True, per_host=True), {}, 4, (1, True, False)),
        ("script-2-hosts", LaunchRequest(from_job=True, slots=1), {}, 4, (1, False, False)),
        ("script-2-hosts", LaunchRequest(from_job=True), {}, 4, (1, True, True)),
        ("torch-distributed", LaunchRequest(from_job=True), {}, 4, (4, False, False)),
        ("book-chapter", LaunchRequest(from_job=True), {}, 4, (4, False, False)),
        ("mpi", LaunchRequest(from_job=True, per_gpu=True), {}, 4, (4, False, False)),  # beats processes_per_host
    ],
)
def test_one_rank_per_gpu_is_a_wish_like_a_number(tree, request_, environ, gpus, expected):
    config = job(tree, request_, **environ)
    assert (slots(config, gpus), config.launch.per_host, config.launch.is_default) == expected


@pytest.mark.parametrize(
    ("request_", "environ", "says"),
    [
        (
            LaunchRequest(from_job=True, per_gpu=True, per_host=True),
            {},
            "--per-host: contradicts one rank per GPU from --per-gpu",
        ),
        (
            LaunchRequest(from_job=True, per_gpu=True, share_nothing=True),
            {},
            "--share-nothing: contradicts one rank per GPU",
        ),
        (
            LaunchRequest(from_job=True, per_gpu=True),
            {"ALGORUN_ENGINE": "ray"},
            "--per-gpu: contradicts engine ray: its driver runs once",
        ),
    ],
)
def test_one_rank_per_gpu_contradicts_one_per_host(request_, environ, says):
    with pytest.raises(UserError, match=says):
        job("script", request_, **environ)


def test_a_program_of_the_environment_beats_the_hyperparameter():
    config = job("script", SAGEMAKER_PROGRAM="ddp")
    assert (config.entry.kind, config.entry.source) == ("bundled", "SAGEMAKER_PROGRAM")


@pytest.mark.parametrize(("text", "entry"), [("", ("bundled", "ddp")), ("print()\n", ("script", "ddp.py"))])
def test_an_empty_file_named_as_an_entrypoint_stands_for_it(tmp_path, text, entry):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "ddp.py").write_text(text)
    config = read_config(
        LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(tmp_path), "SAGEMAKER_PROGRAM": "ddp.py"}
    )
    assert (config.entry.kind, config.entry.target) == entry


def test_a_file_that_is_not_there_is_no_entrypoint(tmp_path):
    (tmp_path / "code").mkdir()
    with pytest.raises(UserError, match="'ddp.py' does not exist"):
        read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(tmp_path), "SAGEMAKER_PROGRAM": "ddp.py"})


@pytest.mark.parametrize(
    ("program", "near"),
    [
        ("main.py", "project/main.py"),  # the archive was made one folder too high
        ("src/train", "src/train.py"),  # AWS's toolkit takes no such name for a module either
        ("train.py", "src/train.py"),
        ("trian", "train"),
    ],
)
def test_a_program_that_lies_elsewhere_is_proposed(tmp_path, program, near):
    for name in ("project/main.py", "src/train.py", "src/deep/er/and/main.py", ".git/main.py", "train.sh"):
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).touch()
    with pytest.raises(UserError, match=f"'{program}' does not exist in .*did you mean {near}"):
        read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(tmp_path), "SAGEMAKER_PROGRAM": program})


def test_code_in_the_image_that_hides_the_submitted_one_is_named(tmp_path):
    """As under AWS's toolkit, files in the folder count more than the archive; who submitted it would never know."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "old.py").touch()
    (tmp_path / "input" / "config").mkdir(parents=True)
    named = {"sagemaker_program": "old.py", "sagemaker_submit_directory": "s3://bucket/source.tar.gz"}
    (tmp_path / "input" / "config" / "hyperparameters.json").write_text(json.dumps(named))
    resources = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
    (tmp_path / "input" / "config" / "resourceconfig.json").write_text(json.dumps(resources))
    environ = {"SAGEMAKER_BASE_DIR": str(tmp_path)}
    found = read_config(LaunchRequest(from_job=True), environ)
    assert "'s3://bucket/source.tar.gz' is not fetched" in found.warning
    assert prepared(found).warning == found.warning
    assert read_config(LaunchRequest(target="ddp"), environ).warning == ""
    with pytest.raises(
        UserError, match="'new.py' does not exist in .*; but .*'s3://bucket/source.tar.gz' is not fetched"
    ):
        read_config(LaunchRequest(from_job=True), environ | {"SAGEMAKER_PROGRAM": "new.py"})


def test_hyperparameters_become_the_arguments():
    assert job("script").entry.args == ("--lr", "0.1", "--name", "x y")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("missing.py", "does not exist"),
        ("fixtures", "is a folder"),
        ("dpp", "did you mean ddp"),
        ("conftest.txt", "not exist"),
    ],
)
def test_a_program_that_is_not_there(target, says):
    with pytest.raises(UserError, match=says):
        read_config(
            LaunchRequest(target=target, cwd=str(TREES.parent.parent)), {"SAGEMAKER_BASE_DIR": str(TREES / "script")}
        )


@pytest.mark.parametrize(
    ("name", "text", "mode", "head"),
    [
        ("run.sh", "#!/bin/bash\n", 0o644, ("/bin/bash", "./run.sh")),
        ("run.sh", "#! /usr/bin/env bash -eu \n", 0o644, ("/usr/bin/env", "bash -eu", "./run.sh")),
        ("run.sh", "true\n", 0o644, ("/bin/sh", "./run.sh")),
        ("run.sh", "true\n", 0o755, ("/bin/sh", "./run.sh")),
        ("run.sh", "#!/bin/bash\n", 0o755, ("./run.sh",)),
        ("bin/go", "#!/bin/bash\n", 0o644, ("/bin/bash", "./bin/go")),
        ("bin/go", "\x7fELF\0", 0o755, ("./bin/go",)),
        ("train.py", "#!/bin/bash\n", 0o755, ("python", "-u", "train.py")),
    ],
)
def test_the_first_line_of_a_program_counts_executable_or_not(tmp_path, name, text, mode, head):
    path = tmp_path / "code" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(mode)
    config = read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(tmp_path), "SAGEMAKER_PROGRAM": name})
    assert config.entry.argv("python") == head
    assert config.entry.target == name


def test_a_file_that_nothing_can_start_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(UserError, match="notes.txt' is not executable"):
        read_config(LaunchRequest(target="notes.txt", cwd=str(tmp_path)), {"SAGEMAKER_BASE_DIR": str(tmp_path)})


def test_code_without_a_program_is_an_error(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    with pytest.raises(UserError, match=r"is absent, but .*train\.py"):
        read_config(LaunchRequest(from_job=True), {"SAGEMAKER_BASE_DIR": str(tmp_path)})


def test_limits_come_from_the_environment():
    assert Limits.of({"ALGORUN_GRACE_S": "90", "OTHER": "x"}) == Limits(grace_s=90.0)
    with pytest.raises(UserError, match="ALGORUN_HEARTBEAT_S.*less than ALGORUN_HEARTBEAT_TIMEOUT_S"):
        Limits.of({"ALGORUN_HEARTBEAT_TIMEOUT_S": "1"})


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [("eth0", ("eth0", "lo"), "eth0"), ("ethwe", ("eth0", "lo"), "eth0"), ("", ("eth0", "lo"), "eth0")],
)
def test_an_interface_that_does_not_exist_falls_back_to_the_default_route(name, known, expected):
    from algorun.common.fast_dataclasses import replace

    config = job("script")
    config = replace(config, input=replace(config.input, resources=replace(config.resources, interface=name)))
    found = cluster.interface(config, replace(machine(), interfaces=known))
    assert found.value == expected
    assert (name == "ethwe") == ("does not exist here" in found.source)


@pytest.mark.parametrize("follows", ["end", "skip"])
def test_what_follows_a_value_that_nobody_looks_for_is_refused(follows):
    with pytest.raises(UserError, match=f"^ALGORUN_NONFINITE: {follows}, and with ALGORUN_HOOKS=off nobody looks"):
        job("script", ALGORUN_NONFINITE=follows, ALGORUN_HOOKS="off")
    for environ in (
        {"ALGORUN_NONFINITE": "skip"},
        {"ALGORUN_HOOKS": "off"},
        {"ALGORUN_NONFINITE": "warn", "ALGORUN_HOOKS": "off"},
    ):
        job("script", **environ)
