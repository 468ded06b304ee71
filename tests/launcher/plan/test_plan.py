"""Ranks and plans: a bijection, the same on every host, printable, JSON and back, golden files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common import codec
from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import replace
from algorun.job import channels
from algorun.job.config import LaunchRequest
from algorun.job.hyperparameter_groups import Hyperparameters
from algorun.job.paths import Paths
from algorun.job.values import Sourced
from algorun.machine.efa import Plugin
from algorun.machine.openmpi import OpenMpi
from algorun.plan import cluster, plan, render
from algorun.plan.plan import Plan
from tests.conftest import OPEN_MPI, PROGRAMS, TREES, job, machine

GOLDEN = Path(__file__).parents[2] / "golden"


def made(tree: str, gpus: int = 0, openmpi: OpenMpi | None = None, **environ: str) -> Plan:
    config = job(tree, **environ)
    base = Paths(Path("/opt/ml"))  # so that golden files hold wherever the tests lie
    config = replace(
        config,
        input=replace(config.input, paths=base, channels=channels.of_training(config.input.described, base)),
        code=str(base.code),
        entry=replace(config.entry, cwd=str(base.code)),
    )
    found = machine(gpus, openmpi=openmpi)
    slots = cluster.assumed_slots(config, cluster.own_slots(config, found))
    return plan.make(config, cluster.resolve(config, slots), found, PROGRAMS)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=12))
def test_ranks_are_a_bijection_in_the_order_of_hosts(counts):
    config = job("script", LaunchRequest(from_job=True, imagine_hosts=len(counts)))
    found = cluster.resolve(config, dict(zip(config.resources.hosts, (Sourced(n, "") for n in counts), strict=True)))
    assert [rank for host in found.hosts for rank in host.ranks] == list(range(sum(counts)))
    assert [len(host.ranks) for host in found.hosts] == counts
    assert found.world_size == sum(counts)


@pytest.mark.parametrize("count", [0, -1])
def test_a_host_without_slots_is_refused_by_name(count):
    with pytest.raises(UserError, match="slots of algo-2"):
        cluster.resolve(job("script-2-hosts"), {"algo-1": Sourced(1, ""), "algo-2": Sourced(count, "")})


@pytest.mark.parametrize(
    ("name", "tree", "gpus", "openmpi"),
    [
        ("native-book-chapter", "book-chapter", 2, None),
        ("torchrun-heterogeneous", "heterogeneous", 4, None),
        ("mpirun-3x2", "mpi", 0, OPEN_MPI[4]),
        ("mpirun-5-3x2", "mpi", 0, OPEN_MPI[5]),
        ("per-host", "script-2-hosts", 0, None),
    ],
)
def test_plans_are_as_their_golden_files(name, tree, gpus, openmpi):
    """`UPDATE_GOLDEN=1 pytest` writes them anew; the diff is then for people to read."""
    text = render.plan_text(made(tree, gpus, openmpi)) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("tree", sorted(path.name for path in TREES.iterdir()))
def test_a_plan_goes_to_json_and_comes_back(tree):
    before = made(tree, 2)
    assert codec.from_json(Plan, json.loads(json.dumps(codec.to_json(before)))) == before


def test_a_plan_without_mpirun_is_our_image_s():
    """A laptop plans for SageMaker; a run there would say what to install."""
    here, there = made("mpi"), made("mpi", openmpi=OPEN_MPI[4])
    assert here.hosts == there.hosts
    assert "no mpirun here: the plan has options of Open MPI 4" in render.plan_text(here)


@pytest.mark.parametrize("openmpi", OPEN_MPI.values())
def test_a_plan_with_open_mpi_goes_to_json_and_comes_back(openmpi):
    before = made("mpi", openmpi=openmpi)
    assert codec.from_json(Plan, json.loads(json.dumps(codec.to_json(before)))) == before


def test_hosts_that_are_alike_share_a_row():
    hosts = tuple(f"algo-{number}" for number in range(1, 8))
    slots = dict(zip(hosts, (Sourced(count, "") for count in (2, 2, 2, 2, 1, 1, 2)), strict=True))
    config = job("script", LaunchRequest(from_job=True, imagine_hosts=len(hosts)))
    rows = render.rank_map(
        plan.make(config, cluster.resolve(config, slots), machine(), PROGRAMS), folded=True
    ).splitlines()
    assert [row.split() for row in rows if row.strip().startswith("algo-")] == [
        ["algo-1", "0", "2", "0-1", "leader"],
        ["algo-2", "to", "algo-4", "1", "to", "3", "2", "2-7"],
        ["algo-5", "to", "algo-6", "4", "to", "5", "1", "8-9"],
        ["algo-7", "6", "2", "10-11"],
    ]


WARNED = [
    ("script-2-hosts", 4, True),
    ("script", 2, True),
    ("script-2-hosts", 1, False),
    ("script-2-hosts", 0, False),
    ("torch-distributed", 4, False),
    ("book-chapter", 4, False),
    ("mpi-false", 8, True),
]


@pytest.mark.parametrize(("tree", "gpus", "warned"), WARNED)
def test_gpus_that_no_rank_is_for_are_counted_once(tree, gpus, warned):
    planned = made(tree, gpus)
    lines = [line for line in render.rank_map(planned).splitlines() if "warning" in line]
    hosts = planned.nnodes
    ranks = "1 rank" if hosts == 1 else f"{hosts} ranks"
    expected = (
        f"algorun: warning: {ranks}, one per host, on {hosts} of {hosts * gpus} GPUs: hyperparameter algorun_per_gpu=true, or a "
        f"distribution, starts {hosts * gpus}; algorun_per_host=true says that the program itself uses all GPUs of its host"
    )
    assert lines == [expected] * warned


def test_every_variable_has_a_source():
    before = made("heterogeneous", 4)
    for host in before.hosts:
        for variable in (*before.env, *host.env, *(v for rank in host.ranks for v in rank.env)):
            assert variable.source, variable.name


def test_unknown_and_missing_keys_are_refused_with_their_place():
    value = codec.to_json(made("script"))
    with pytest.raises(ValueError, match=r"\$: unknown key 'extra'"):
        codec.from_json(Plan, {**value, "extra": 1})
    with pytest.raises(ValueError, match=r"\$\.engine: 'value' is missing"):
        codec.from_json(Plan, {**value, "engine": {"source": ""}})
    with pytest.raises(ValueError, match=r"\$\.nnodes: 'two' is not int"):
        codec.from_json(Plan, {**value, "nnodes": "two"})


def test_all_hosts_make_the_same_plan():
    plans = set()
    config = job("heterogeneous")
    slots = {"algo-2": Sourced(4, "4 GPUs"), "algo-1": Sourced(1, "no GPU"), "algo-10": Sourced(4, "4 GPUs")}
    for host in config.resources.hosts:
        own = replace(config, input=replace(config.input, resources=replace(config.resources, current_host=host)))
        ranks = cluster.resolve(own, slots)
        mine = plan.make(own, ranks, machine(), PROGRAMS)
        plans.add(tuple((h.host, h.node_rank, h.starter, tuple(r.rank for r in h.ranks)) for h in mine.hosts))
    assert len(plans) == 1
    assert [len(host[3]) for host in plans.pop()] == [4, 1, 4]


def test_a_name_with_a_dash_has_a_second_spelling_that_takes_nobody_elses_place():
    script = job("script")
    raw = {"batch-size": "1", "batch_size": "2", "log-every": "3", "a=b": "4"}
    config = replace(script, input=replace(script.input, hyperparameters=Hyperparameters.parse(raw)))
    ranks = cluster.resolve(config, {"algo-1": Sourced(1, "")})
    shown = plan.make(config, ranks, machine(), PROGRAMS)
    environ = shown.environ(shown.hosts[0], shown.hosts[0].ranks[0])
    assert (environ["SM_HP_BATCH-SIZE"], environ["SM_HP_BATCH_SIZE"]) == ("1", "2")
    assert (environ["SM_HP_LOG-EVERY"], environ["SM_HP_LOG_EVERY"]) == ("3", "3")
    assert not [name for name in environ if "=" in name], "no process can be given such a name"
    assert json.loads(environ["SM_HPS"])["a=b"] == 4


def test_every_host_gets_its_own_training_environment():
    """As it would write it itself from its own resourceconfig.json: the plan of another host says the same."""
    here = job("heterogeneous")
    ranks = cluster.resolve(here, {host: Sourced(1, "") for host in here.resources.hosts})
    for name in here.resources.hosts:
        group = next(group for group in here.resources.groups if name in group.hosts)
        raw = {"current_host": name, "current_group_name": group.name, "current_instance_type": group.instance_type}
        own = replace(
            here.resources,
            raw={**here.resources.raw, **raw},
            current_host=name,
            current_group=group.name,
            instance_type=group.instance_type,
        )
        there = replace(here, input=replace(here.input, resources=own))
        plans = [plan.make(config, ranks, machine(), PROGRAMS) for config in (here, there)]
        assert plans[0].host(name) == plans[1].host(name)


def test_what_the_user_has_set_stays_and_the_plan_says_so():
    host = made("script", NCCL_SOCKET_IFNAME="ib0").hosts[0]
    found = {v.name: v for v in host.env}
    assert (found["NCCL_SOCKET_IFNAME"].value, found["NCCL_SOCKET_IFNAME"].source) == (
        "ib0",
        "set in the environment: kept",
    )
    assert found["GLOO_SOCKET_IFNAME"].value == "eth0"


DATA_PARALLEL = {"sagemaker_distributed_dataparallel_enabled": "true"}


@pytest.mark.parametrize(
    ("raw", "environ", "wanted"),
    [
        (DATA_PARALLEL, {}, ["0", "1"]),
        ({}, {"SM_FRAMEWORK_PARAMS": json.dumps(DATA_PARALLEL)}, ["0", "1"]),
        ({"sagemaker_mpi_enabled": "true"}, {"SM_FRAMEWORK_PARAMS": json.dumps(DATA_PARALLEL)}, [None, None]),
        ({}, {"SM_FRAMEWORK_PARAMS": "["}, [None, None]),
        ({}, {"SM_FRAMEWORK_PARAMS": "[" * 40_000}, [None, None]),
        ({}, {}, [None, None]),
    ],
    ids=["job", "environment", "the job wins", "no JSON", "nested too deep", "neither"],
)
def test_ranks_of_a_data_parallel_job_have_the_librarys_local_rank(raw, environ, wanted):
    script = job("script", **environ)
    config = replace(script, input=replace(script.input, hyperparameters=Hyperparameters.parse(raw)))
    ranks = cluster.resolve(config, {host: Sourced(2, "") for host in config.resources.hosts})
    shown = plan.make(config, ranks, machine(), PROGRAMS)
    host = shown.hosts[0]
    assert [shown.environ(host, rank).get("SMDATAPARALLEL_LOCAL_RANK") for rank in host.ranks] == wanted


def test_framework_parameters_of_the_environment_stay_where_no_job_has_any():
    given = {"sagemaker_mpi_enabled": True}
    shown = made("script", SM_FRAMEWORK_PARAMS=json.dumps(given | {"api_token": "secret"}))
    found = next(v for v in shown.env if v.name == "SM_FRAMEWORK_PARAMS")
    assert (json.loads(found.value), found.source) == (given, "set in the environment: kept")
    environ = shown.environ(shown.hosts[0], shown.hosts[0].ranks[0])
    assert json.loads(environ["SM_TRAINING_ENV"])["additional_framework_parameters"] == given


def test_a_wrong_framework_parameter_of_the_environment_is_named_as_one():
    with pytest.raises(UserError, match="^sagemaker_distributed_dataparallel_enabled in SM_FRAMEWORK_PARAMS: 'maybe'"):
        made("script", SM_FRAMEWORK_PARAMS=json.dumps({"sagemaker_distributed_dataparallel_enabled": "maybe"}))


@pytest.mark.parametrize("secret", ["hunter2", 'hünter"2', "back\\slash"])
def test_secrets_are_not_shown(tmp_path, secret):
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text('{"hosts": ["a"], "current_host": "a"}')
    (folder / "hyperparameters.json").write_text(json.dumps({"api_key": secret, "lr": "1"}))
    config = job(str(tmp_path))
    ranks = cluster.resolve(config, {"a": Sourced(1, "")})
    shown = plan.make(config, ranks, machine(), PROGRAMS)
    assert shown.environ(shown.hosts[0], shown.hosts[0].ranks[0])["SM_HP_API_KEY"] == secret
    redacted = render.redacted(shown)
    values = [*redacted.argv, *redacted.environ(redacted.hosts[0], redacted.hosts[0].ranks[0]).values()]
    for form in (secret, json.dumps(secret)[1:-1]):
        assert form not in render.plan_text(shown)
        assert not [value for value in values if form in value]


def test_a_thousand_hosts_are_planned_with_every_rank():
    config = job("book-chapter", LaunchRequest(from_job=True, imagine_hosts=1000, slots=8))
    slots = cluster.assumed_slots(config, cluster.own_slots(config, machine()))
    started = time.process_time()
    found = plan.make(config, cluster.resolve(config, slots), machine(), PROGRAMS)
    spent = time.process_time() - started
    assert sum(len(host.ranks) for host in found.hosts) == found.world_size == 8000
    assert spent < 5, "planning must not grow with hosts times hosts"


def first_rank(own=None, **changes):
    """The variables of rank 0 on a machine with these changes; `own`: what the user has set."""
    config = job("script")
    config = replace(config, input=replace(config.input, environ=own or {}))
    host = replace(machine(), **changes)
    ranks = cluster.resolve(config, cluster.assumed_slots(config, cluster.own_slots(config, host)))
    found = plan.make(config, ranks, host, PROGRAMS)
    return found.environ(found.hosts[0], found.hosts[0].ranks[0])


def test_an_efa_device_is_used_where_there_is_one_and_the_user_can_say_otherwise():
    for devices, expected in (((), None), (("efa_0",), "efa")):
        assert first_rank(efa_devices=devices).get("FI_PROVIDER") == expected
    assert first_rank({"FI_PROVIDER": "tcp"}, efa_devices=("efa_0",))["FI_PROVIDER"] == "tcp"


@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        (
            Plugin("", "/opt/x/libnccl-net-ofi.so"),
            "/opt/x/libnccl-net-ofi.so",
        ),  # NCCL looks for another name, or not there
        (Plugin("/usr/lib/libnccl-net.so"), None),
        (Plugin("", "/opt/x/libnccl-net-ofi.so", "none"), None),
        (Plugin(), None),
    ],
)
def test_nccl_is_told_of_a_plugin_that_it_does_not_find(plugin, expected):
    assert first_rank(efa_devices=("efa_0",), nccl_plugin=plugin).get("NCCL_NET_PLUGIN") == expected


@pytest.mark.parametrize(
    ("cpus", "own", "expected"),
    [
        (8, {}, "1000"),
        (1, {}, None),
        (8, {"OMP_NUM_THREADS": "1"}, None),
        (1, {"OMP_NUM_THREADS": "4"}, "1000"),
        (8, {"GOMP_SPINCOUNT": "7"}, "7"),
        (8, {"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
)
def test_threads_that_wait_leave_the_core_soon(cpus, own, expected):
    assert first_rank(own, cpus=Sourced(cpus, "test")).get("GOMP_SPINCOUNT") == expected


@pytest.mark.parametrize(
    ("gpus", "own", "expected"),
    [
        (4, {}, "2000"),
        (0, {}, None),
        (4, {"TORCH_FR_BUFFER_SIZE": "0"}, "0"),
        (4, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, None),  # the older name of the same setting
    ],
)
def test_ranks_with_gpus_record_their_collective_calls(gpus, own, expected):
    assert first_rank(own, gpus=Sourced(gpus, "test")).get("TORCH_FR_BUFFER_SIZE") == expected
