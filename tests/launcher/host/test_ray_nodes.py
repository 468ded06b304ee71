"""The nodes of a cluster: the driver waits for all of them."""

from __future__ import annotations

from algorun.control.hub import hub_messages
from algorun.control.wire.messages import NodeAlive
from algorun.host.engines.ray.nodes import Nodes
from tests.launcher.jobs import running


def test_the_driver_waits_for_the_node_of_every_host():
    nodes = Nodes(("algo-1", "algo-2", "algo-3"), attempt=1)
    for host, attempt in (("algo-1", 1), ("algo-3", 0), ("stranger", 1), ("algo-1", 1)):
        nodes.heard(NodeAlive(attempt, host))
    assert nodes.missing == ["algo-2", "algo-3"], "one is of the attempt before"
    assert not nodes.all_alive
    for host in ("algo-2", "algo-3"):
        nodes.heard(NodeAlive(1, host))
    assert nodes.all_alive
    assert not nodes.missing


def test_the_hub_tells_the_leader_and_names_the_host_itself():
    job = running(2)
    found = hub_messages.receive(job.hub, job.now, "algo-2", NodeAlive(0, "algo-1"))
    assert found == [("algo-1", NodeAlive(0, "algo-2"))]
