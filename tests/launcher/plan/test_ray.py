"""The plan of a Ray cluster: nodes, driver, resources, what is refused."""

from __future__ import annotations

import json

import pytest

from algorun.common import codec
from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import replace
from algorun.job.config import JobConfig, LaunchRequest, read_config
from algorun.job.values import Sourced
from algorun.machine.probe import Machine
from algorun.machine.ray import Ray
from algorun.plan import agreement, cluster, plan, ray_cluster, render
from algorun.plan.cluster import Meeting
from algorun.plan.plan import Plan
from tests.conftest import PROGRAMS, job, machine

GIB = 1024**3
SIMULATED = {"ALGORUN_ADDRESSES": "algo-1=127.0.0.2,algo-2=127.0.0.3"}


def asked(tree: str = "script-2-hosts", **environ: str) -> JobConfig:
    return job(tree, LaunchRequest(from_job=True, engine="ray"), **environ)


def made(config: JobConfig, found: Machine | None = None, meeting: Meeting | None = None) -> Plan:
    found = found or replace(machine(), ray=Ray("/opt/venv/bin/ray", "2.60.0", has_client_server=True))
    slots = cluster.assumed_slots(config, cluster.own_slots(config, found))
    hosts = cluster.resolve(config, slots)
    return plan.make(config, hosts, found, PROGRAMS, meeting)


def meeting() -> Meeting:
    addresses = {"algo-1": "10.0.0.1", "algo-2": "10.0.0.2"}
    ports = (Sourced(port, "") for port in (12001, 12002, 12003))
    return Meeting(Sourced("algo-1", ""), *ports, addresses=addresses, secret="5ec7e7")


@pytest.mark.parametrize(
    ("request_", "environ", "hyperparameters", "source"),
    [
        (LaunchRequest(from_job=True), {}, {"algorun_engine": "ray"}, "hyperparameter algorun_engine"),
        (LaunchRequest(from_job=True), {"ALGORUN_ENGINE": "ray"}, {"sagemaker_torch_distributed_enabled": "true"}, "ALGORUN_ENGINE"),
        # SDK v3: SourceCode(command="exec algorun run --engine ray driver.py")
        (LaunchRequest(target="driver.py", engine="ray"), {}, {}, "--engine"),
    ],
)  # fmt: skip
def test_the_engine_can_be_asked_for_in_each_way_of_the_sdks(request_, environ, hyperparameters, source, tmp_path):
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text('{"hosts": ["a", "b"], "current_host": "a"}')
    (folder / "hyperparameters.json").write_text(json.dumps({"sagemaker_program": '"driver.py"', **hyperparameters}))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "driver.py").touch()
    found = read_config(
        replace(request_, cwd=str(tmp_path / "code") if request_.target else ""),
        {"SAGEMAKER_BASE_DIR": str(tmp_path), **environ},
    )
    assert (found.launch.engine.value.has_driver, found.launch.engine.source) == (True, source)
    assert not found.launch.per_host, "the driver runs once"


def test_the_head_is_on_the_leader_and_every_other_host_has_a_node_at_its_own_address():
    first, second = made(asked(), meeting=meeting()).hosts
    assert first.starter[:4] == ("/opt/venv/bin/ray", "start", "--head", "--port=12002")
    assert {"--block", "--node-ip-address=10.0.0.1", "--include-dashboard=false"} < set(first.starter)
    assert "--ray-client-server-port=12001" in first.starter
    assert second.starter[:3] == ("/opt/venv/bin/ray", "start", "--address=10.0.0.1:12002")
    assert "--node-ip-address=10.0.0.2" in second.starter
    assert not {"--head", "--include-dashboard=false"} & set(second.starter)


def test_the_driver_is_the_only_rank_and_is_told_where_the_cluster_is_but_no_rank():
    found = made(asked(), meeting=meeting())
    assert [(host.host, len(host.ranks)) for host in found.hosts] == [("algo-1", 1), ("algo-2", 0)]
    environ = found.environ(found.hosts[0], found.hosts[0].ranks[0])
    assert environ["RAY_ADDRESS"] == "10.0.0.1:12002"
    assert environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert (environ["RAY_AUTH_MODE"], environ["RAY_AUTH_TOKEN"]) == ("token", "5ec7e7")
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"} & set(environ)


def test_workers_of_a_host_get_what_its_starter_gets():
    found = made(asked(), meeting=meeting())
    environ = found.starter_environ(found.hosts[1])
    assert environ["SM_CURRENT_HOST"] == "algo-2"
    assert environ["RAY_AUTH_TOKEN"] == "5ec7e7"
    assert "OMP_NUM_THREADS" not in environ, "Ray sets it by the CPUs of a task"


def test_what_the_user_has_set_is_kept_but_not_another_address():
    found = made(asked(RAY_USAGE_STATS_ENABLED="1", RAY_ADDRESS="elsewhere:6379"), meeting=meeting())
    environ = found.environ(found.hosts[0], found.hosts[0].ranks[0])
    assert environ["RAY_USAGE_STATS_ENABLED"] == "1"
    assert environ["RAY_ADDRESS"] == "10.0.0.1:12002"


@pytest.mark.parametrize(
    ("environ", "gpus", "options"),
    [
        ({}, 0, ["--num-cpus=8", "--num-gpus=0", f"--object-store-memory={int(6.4 * GIB)}"]),
        ({}, 4, ["--num-gpus=4"]),
        ({"ALGORUN_SLOTS": "3"}, 0, ["--num-cpus=3"]),
        ({"ALGORUN_RAY_OBJECT_STORE_MB": "2048"}, 0, [f"--object-store-memory={2 * GIB}", f"--memory={62 * GIB}"]),
        # hosts of one machine share its CPUs, its memory and its /dev/shm
        (SIMULATED, 0, ["--num-cpus=4", f"--object-store-memory={int(3.2 * GIB)}", "--node-ip-address=127.0.0.2"]),
    ],
)
def test_resources_are_those_of_the_host(environ, gpus, options):
    found = replace(machine(gpus), ray=Ray("ray", "2.60.0", has_client_server=False))
    starter = made(asked(**environ), found).hosts[0].starter
    assert set(options) <= set(starter)
    assert not any(word.startswith("--ray-client-server-port") for word in starter)


def test_instance_groups_become_resources():
    hosts = made(asked("heterogeneous")).hosts
    resources = [json.loads(word.partition("=")[2]) for host in hosts for word in host.starter if "--resources" in word]
    assert [(host.host, each) for host, each in zip(hosts, resources, strict=True)] == [
        ("algo-2", {"gpu": 1}),
        ("algo-1", {"cpu": 1}),
        ("algo-10", {"gpu": 1}),
    ]


@pytest.mark.parametrize(
    ("shm", "environ", "code", "says"),
    [
        (1024, {"ALGORUN_RAY_OBJECT_STORE_MB": "2000"}, 64,
         "ALGORUN_RAY_OBJECT_STORE_MB: 2000 MiB for Ray's object store is more than the 1024 MiB free in /dev/shm; "
         "allowed: 75 MiB to 1024 MiB; fix: a smaller value, or docker run --shm-size"),
        (1024, {"ALGORUN_RAY_OBJECT_STORE_MB": "74"}, 64, "ALGORUN_RAY_OBJECT_STORE_MB: '74' is not a whole number from 75"),
    ],
)  # fmt: skip
def test_an_object_store_that_was_asked_for_and_does_not_fit_is_refused(shm, environ, code, says):
    with pytest.raises(UserError, match="^") as raised:
        ray_cluster.offer(asked(**environ), replace(machine(), shm_bytes=shm * 1024**2))
    assert str(raised.value).startswith(says)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (LaunchRequest(target="ddp", engine="ray"), "--engine: ray runs a program of yours as the driver of its cluster; ddp runs as"),
        (LaunchRequest(target="x.py", engine="ray", per_host=True), "--per-host: contradicts engine ray: its driver runs once"),
    ],
)  # fmt: skip
def test_what_contradicts_a_driver_is_refused(request_, says, tmp_path):
    (tmp_path / "x.py").touch()
    with pytest.raises(UserError, match="^") as raised:
        job("script-2-hosts", replace(request_, cwd=str(tmp_path)))
    assert str(raised.value).startswith(says)


def test_a_plan_can_be_made_printed_and_sent_without_ray_and_shows_no_secret():
    found = made(asked(), machine(), meeting())
    text = render.plan_text(found)
    assert "no Ray here: every host looks for it once its requirements are installed" in text
    assert "algo-2  1          0      -" in text
    assert "RAY_AUTH_TOKEN=***" in text
    assert "5ec7e7" not in text
    assert codec.from_json(Plan, json.loads(json.dumps(codec.to_json(found)))) == found


def test_one_rank_on_the_leader_alone_is_no_uneven_job():
    digests = [agreement.at_the_start(asked(ALGORUN_EQUAL_SLOTS="1"), machine(), "", slots) for slots in (1, 0)]
    assert digests[0] == digests[1]


def test_hosts_must_agree_on_the_version_of_ray():
    digests = [
        agreement.at_the_start(asked(), replace(machine(), ray=Ray("ray", version, False)), "", 1)
        for version in ("2.60.0", "2.59.0")
    ]
    assert [each["Ray version"] for each in digests] == ["2.60.0", "2.59.0"]


@pytest.mark.parametrize(
    ("shm", "memory", "store"),
    [
        (1024, 8192, 819),
        (94, 8192, 75),
        (93, 8192, 256),
        (64, 8192, 256),
        (0, 8192, 256),
        (64, 512, 153),
        (64, 128, 75),
    ],
)
def test_without_room_in_dev_shm_the_object_store_is_one_that_ray_puts_into_tmp(shm, memory, store):
    found = ray_cluster.offer(asked(), replace(machine(), shm_bytes=shm * 1024**2, memory_bytes=memory * 1024**2))
    assert found.store_bytes // 1024**2 == store
    assert found.store_bytes <= 0.8 * shm * 1024**2 or store > shm, "Ray takes /tmp for what /dev/shm cannot hold"
