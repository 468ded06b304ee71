"""What ranks get for frameworks other than torch."""

from __future__ import annotations

import json

import pytest

from algorun.common import codec
from algorun.common.errors import UserError
from algorun.job.config import LaunchRequest
from algorun.job.values import Sourced
from algorun.plan import cluster, plan, render
from algorun.plan.cluster import Meeting
from algorun.plan.plan import Plan
from tests.conftest import OPEN_MPI, PROGRAMS, job, machine

COORDINATOR, DEVICES = "JAX_COORDINATOR_ADDRESS", "JAX_LOCAL_DEVICE_IDS"
ENGINES = ("native", "torchrun", "mpirun")


def made(slots: int, gpus: int = 0, meeting: Meeting | None = None, **environ: str) -> Plan:
    config = job("script-2-hosts", ALGORUN_SLOTS=str(slots), **environ)
    here = machine(gpus, openmpi=OPEN_MPI[4])
    ranks = cluster.resolve(config, dict.fromkeys(config.resources.hosts, Sourced(slots, "")))
    return plan.make(config, ranks, here, PROGRAMS, meeting)


def of_ranks(found: Plan, name: str) -> list[str | None]:
    return [found.environ(host, rank).get(name) for host in found.hosts for rank in host.ranks]


def met(address: str, *ports: int, attempt: int = 0) -> Meeting:
    return Meeting(Sourced(address, "leader"), *(Sourced(port, "free") for port in ports), attempt)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_rank_of_every_engine_finds_the_coordinator_of_jax_on_a_port_of_its_own(engine):
    found = made(2, meeting=met("algo-1", 1001, 1002, 1003), ALGORUN_ENGINE=engine)
    assert of_ranks(found, COORDINATOR) == ["algo-1:1003"] * 4
    assert of_ranks(found, "MASTER_PORT") == ["1001"] * 4
    environments = [found.environ(host, rank) for host in found.hosts for rank in host.ranks]
    assert not [name for environ in environments for name in environ if name.startswith("OMPI_")], "never imitated"


def test_another_attempt_has_another_coordinator_and_what_the_image_left_behind_does_not_count():
    given = {COORDINATOR: "nowhere.invalid:1"}
    ports = [of_ranks(made(1, meeting=met("a", 1, 2, port), **given), COORDINATOR) for port in (1003, 1004)]
    assert ports == [["a:1003"] * 2, ["a:1004"] * 2]


def test_an_ipv6_address_is_told_from_its_port():
    assert of_ranks(made(1, meeting=met("fd00::1", 1, 2, 3)), COORDINATOR) == ["[fd00::1]:3"] * 2


def test_a_standalone_host_has_no_coordinator():
    found = made(1, ALGORUN_SHARE_NOTHING="1")
    assert of_ranks(found, COORDINATOR) == [None, None]


@pytest.mark.parametrize(
    ("slots", "gpus", "expected"),
    [
        (2, 2, ["0", "1"] * 2),
        (2, 8, ["0", "1"] * 2),
        (1, 8, [None] * 2),  # it uses all of them
        (2, 0, [None] * 4),
        (4, 2, [None] * 8),  # who has which GPU is the script's business
    ],
)
def test_each_of_several_ranks_has_its_own_gpu_for_jax(slots, gpus, expected):
    assert of_ranks(made(slots, gpus), DEVICES) == expected


def test_the_users_own_choice_of_gpus_stays():
    assert of_ranks(made(2, 2, JAX_LOCAL_DEVICE_IDS="1"), DEVICES) == [None] * 4, (
        "as in the environment of the launcher"
    )


# -- TensorFlow ------------------------------------------------------------------------------------------------------

WISH = {"ALGORUN_TF_CONFIG": "1"}


def tf_configs(found: Plan) -> list[dict]:
    return [json.loads(text or "{}") for text in of_ranks(found, "TF_CONFIG")]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_rank_of_every_engine_is_a_worker_with_a_port_of_its_own(engine):
    """The form is that of AWS's toolkit (sagemaker-tensorflow-training 20.5.0, _build_tf_config_for_mwms)."""
    meeting = Meeting(*(Sourced(each, "") for each in ("algo-1", 1, 2, 3)), 0, {"algo-1": 1000, "algo-2": 2000})
    found = made(2, meeting=meeting, ALGORUN_ENGINE=engine, **WISH)
    workers = ["algo-1:1000", "algo-1:1001", "algo-2:2000", "algo-2:2001"]
    assert tf_configs(found) == [
        {"cluster": {"worker": workers}, "environment": "cloud", "task": {"index": rank, "type": "worker"}}
        for rank in range(4)
    ]


def test_the_plan_shows_the_workers_and_who_asks_for_them():
    found = made(1, **WISH)
    text = render.plan_text(found)
    assert "TF_CONFIG of rank 0; in other ranks only the index differs (ALGORUN_TF_CONFIG):" in text
    assert (
        '{"cluster": {"worker": ["algo-1:8890", "algo-2:8890"]}, "environment": "cloud", "task": {"index": 0,' in text
    )
    assert codec.from_json(Plan, json.loads(json.dumps(codec.to_json(found)))) == found
    assert "TF_CONFIG" not in render.plan_text(made(1))


def test_what_an_image_left_in_tf_config_stays_where_nobody_asks_for_ours():
    left = {"TF_CONFIG": '{"cluster": {}}'}
    assert of_ranks(made(1, **left), "TF_CONFIG") == [None, None]
    assert all(config["task"] for config in tf_configs(made(1, **left, **WISH)))


def test_hosts_whose_names_do_not_resolve_are_found_by_their_addresses():
    found = made(1, ALGORUN_ADDRESSES="algo-1=127.0.0.1,algo-2=fd00::2", **WISH)
    assert tf_configs(found)[0]["cluster"]["worker"] == ["127.0.0.1:8890", "[fd00::2]:8890"]


def test_more_workers_than_a_variable_can_name_are_refused():
    config = job("script-2-hosts", LaunchRequest(from_job=True, imagine_hosts=1000, slots=8), **WISH)
    ranks = cluster.resolve(config, dict.fromkeys(config.resources.hosts, Sourced(8, "")))
    with pytest.raises(UserError, match="TF_CONFIG: 8000 workers make .*; allowed: less than 131072 bytes") as caught:
        plan.make(config, ranks, machine(), PROGRAMS)
    assert caught.value.code == 64
