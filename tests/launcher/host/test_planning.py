"""The plan of an attempt: the leader of a Ray job knows its own part of it while other hosts are missing."""

from __future__ import annotations

import pytest

from algorun.common.fast_dataclasses import replace
from algorun.control.wire.messages import Go, Ready
from algorun.host.engines.ray.nodes import before_the_gate
from algorun.host.preparing import planning
from algorun.job.config import LaunchRequest
from algorun.machine.ray import Ray
from tests.conftest import PROGRAMS, job, machine

SIMULATED = {"ALGORUN_SLOTS": "3", "ALGORUN_ADDRESSES": "algo-1=127.0.0.2,algo-2=127.0.0.3"}


@pytest.mark.parametrize(
    ("tree", "environ"), [("script-2-hosts", {}), ("script-2-hosts", SIMULATED), ("heterogeneous", {})]
)
def test_the_head_before_the_gate_is_that_of_the_plan_after_it(tree, environ):
    config = job(tree, LaunchRequest(from_job=True, engine="ray"), **environ)
    hosts = config.resources.hosts
    found = replace(machine(gpus=2), ray=Ray("/opt/venv/bin/ray", "2.60.0", has_client_server=True))
    ready = Ready(1, {}, hosts[0], 12001, 12002, 12003, address="10.0.0.1", secret="5ec7e7")
    go = Go(
        0, hosts[0], 12001, {host: int(host == hosts[0]) for host in hosts}, 12002, 12003,
        addresses={host: f"10.0.0.{number}" for number, host in enumerate(hosts, 1)}, secret="5ec7e7",
    )  # fmt: skip
    early = planning.planned(config, found, PROGRAMS, before_the_gate(hosts, ready))
    whole = planning.planned(config, found, PROGRAMS, go)
    assert early.hosts[0].starter == whole.hosts[0].starter
    assert "--node-ip-address=10.0.0.1" in early.hosts[0].starter
    assert early.starter_environ(early.hosts[0]) == whole.starter_environ(whole.hosts[0])
    assert (early.cwd, early.engine, early.attempt) == (whole.cwd, whole.engine, whole.attempt)
