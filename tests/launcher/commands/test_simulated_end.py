"""What the folders of simulated hosts tell of the end of their job."""

from __future__ import annotations

import json

from algorun.commands import simulated_end

FAILED = {
    "kind": "failed",
    "code": 1,
    "line": "failed nnodes=2 world_size=4 code=1",
    "failed": {"host": "algo-2", "rank": 2},
}


def trees(tmp_path, **results):
    found = {}
    for host, result in results.items():
        tree = found[host.replace("_", "-")] = tmp_path / host
        (tree / "output" / "data").mkdir(parents=True)
        if result is not None:
            (tree / "output" / "data" / "result.json").write_text(json.dumps(result))
    return found


def test_the_failed_ranks_of_all_hosts_are_known_with_the_table_of_the_leader(tmp_path):
    leader = {**FAILED, "failed_ranks": [0, 1], "table": "algorun: time of algo-1: 3 s"}
    found = trees(tmp_path, algo_1=leader, algo_2={**FAILED, "failed_ranks": [2]})
    end = simulated_end.read_ends(list(found), found, [1, 1], 3.0)
    assert end.failed == ("algo-2", 2)
    assert end.failed_ranks == (("algo-1", 0), ("algo-1", 1), ("algo-2", 2))
    assert end.is_complete
    assert end.about_lines[:2] == ["algorun: time of algo-1: 3 s", "algorun: hosts left with 1, 1 after 3.0 s"]


def test_of_a_host_that_left_nothing_the_failed_ranks_are_not_known(tmp_path):
    found = trees(tmp_path, algo_1={**FAILED, "failed_ranks": [0, "x"]}, algo_2=None)
    end = simulated_end.read_ends(list(found), found, [1, 137], 3.0)
    assert not end.is_complete
    assert end.failed_ranks == (("algo-1", 0),)
