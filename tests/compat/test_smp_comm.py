"""smdistributed.modelparallel.torch: who is who, and objects between ranks."""

from __future__ import annotations

import json

import pytest

from tests.compat.smp_runs import MARK, PROGRAMS, run
from tests.train.training_runs import by_itself

BEFORE = "UserError: .*smp.init().*"


def said(tmp_path, case, **options):
    return [row["said"] for row in run(tmp_path, "smp_comm.py", case, **options)]


# The tables of the documentation's "Ranking Basics", for four ranks.
PLACES = {
    "cluster": ([[0, 1], [0, 1], [2, 3], [2, 3]], [[0, 2], [1, 3], [0, 2], [1, 3]]),
    "spread": ([[0, 2], [1, 3], [0, 2], [1, 3]], [[0, 1], [0, 1], [2, 3], [2, 3]]),
}


@pytest.mark.parametrize("placement", PLACES)
def test_every_rank_knows_its_place_and_has_the_groups(placement, tmp_path):
    rows = said(tmp_path, "places", ranks=4, parameters={"placement_strategy": placement})
    for rank, row in enumerate(rows):
        pipeline, replica = (table[rank] for table in PLACES[placement])
        assert (row["rank"], row["size"], row["local"], row["world"]) == (rank, 4, [rank, 4], 6.0)
        for axis, ranks in (("mp", pipeline), ("pp", pipeline), ("dp", replica), ("rdp", replica), ("tp", [rank])):
            assert row[axis] == [ranks.index(rank), len(ranks), ranks, float(sum(ranks))]


def test_without_replicas_the_data_parallel_group_is_this_rank_alone(tmp_path):
    rows = said(tmp_path, "places", parameters={"ddp": False})
    assert [row["dp"] for row in rows] == [[0, 1, [0], 0.0], [0, 1, [1], 1.0]]
    assert [row["mp"] for row in rows] == [[0, 2, [0, 1], 1.0], [1, 2, [0, 1], 1.0]]


def test_objects_are_sent_broadcast_and_gathered(tmp_path):
    rows = said(tmp_path, "messages", ranks=4)
    assert [row.get("whole") for row in rows] == [True, True, None, True]
    assert [row.get("in order") for row in rows] == [[[1, 0], [1, 1], [1, 2]], None, [[3, 0], [3, 1], [3, 2]], None]
    assert [row.get("dp") for row in rows] == [None, None, "from 0", "from 1"]
    for rank, row in enumerate(rows):
        pipeline, replica = PLACES["cluster"][0][rank], PLACES["cluster"][1][rank]
        assert row["gathered"] == {
            "WORLD": [0, 1, 2, 3],
            "MP_GROUP": pipeline,
            "PP_GROUP": pipeline,
            "DP_GROUP": replica,
            "RDP_GROUP": replica,
            "TP_GROUP": [rank],
        }
        assert row["lengths"] == [0, 1000, 2000, 3000]


def test_a_message_keeps_parameters_tied_weights_and_sparse_tensors(tmp_path):
    assert said(tmp_path, "meanings")[1] == {
        "parameters": [True, True],
        "counted": 2,
        "tied": True,
        "one storage": True,
        "sparse": True,
    }


def test_a_sender_waits_for_its_receiver_and_a_barrier_for_its_group_only(tmp_path):
    rows = said(tmp_path, "waits", ranks=4)
    assert rows[0]["send waited"]
    assert all(row["barrier waited"] for row in rows)


def test_a_wrong_rank_or_group_is_refused_in_one_sentence(tmp_path):
    rows = run(tmp_path, "smp_comm.py", "refusals")
    for rank, row in enumerate(rows):
        assert row["before"] == rows[0]["before"]
        assert row["before"].startswith("UserError: ")
        assert "smp.init()" in row["before"]
        groups = "smp.CommGroup.WORLD, MP_GROUP, DP_GROUP, PP_GROUP, RDP_GROUP, TP_GROUP; fix: give one of them"
        kinds = "smp.RankType.WORLD_RANK, MP_RANK, DP_RANK, PP_RANK, RDP_RANK, TP_RANK; fix: give one of them"
        other = "allowed: 0 .. 1; fix: a rank that the group has, or another rank_type"
        assert row["said"] == {
            "range": f"UserError: MP_RANK 2; {other}",
            "negative": f"UserError: WORLD_RANK -1; {other}",
            "no number": f"UserError: WORLD_RANK '0'; {other}",
            "itself": f"UserError: smp.send: WORLD_RANK {rank} is this process itself; fix: name another rank",
            "type": f"UserError: rank_type 'MP_RANK'; allowed: {kinds}",
            "group": f"UserError: group 'MP_GROUP'; allowed: {groups}",
            "barrier": f"UserError: group 3; allowed: {groups}",
            "broadcast": f"UserError: group <RankType.MP_RANK: 2>; allowed: {groups}",
            "object": "UserError: smdistributed: an object of type generator cannot be sent: cannot pickle 'generator' "
            "object; allowed: what pickle takes; fix: send its data",
        }


# Waits of seconds for a rank that never comes; `make test` has those of steps.
@pytest.mark.slow
def test_a_wait_for_a_rank_that_sends_nothing_ends(tmp_path):
    text, seconds = said(tmp_path, "patience")[0]
    assert text.startswith("RuntimeError: ")
    assert 0.5 < seconds < 7


def test_a_process_without_a_launcher_is_a_job_of_one(tmp_path):
    parameters = json.dumps({"partitions": 1, "ddp": True})
    code, text = by_itself(tmp_path, PROGRAMS / "smp_comm.py", "lone", SM_HP_MP_PARAMETERS=parameters)
    assert code == 0, text
    found = json.loads(text.strip().splitlines()[-1].removeprefix(MARK))["said"]
    assert found["place"] == [0, 1, 1, 1, [0]]
    assert found["gathered"] == ["mine"]
    assert found["group"].startswith("UserError: a process that no launcher started has no torch.distributed group;")
    assert found["send"] == (
        "UserError: WORLD_RANK 1; allowed: 0 .. 0; fix: a rank that the group has, or another rank_type"
    )
