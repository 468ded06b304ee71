"""A sharded model trains as the whole model does on one process, and a rank holds its share of it."""

import re
from pathlib import Path

import pytest

from tests.train.training_runs import Ranks

PROGRAM = str(Path(__file__).parents[1] / "programs" / "sharded_steps.py")
# shards, model, precision, norm to clip at, whether layers are computed again, optimizer
CASES = [
    "4,vit,float64,0,no,adamw",
    "2,vit,float64,0.1,again,adamw",
    "2,vit,float64,0,no,sgd",
    "2,convnet,float64,0,no,adamw",
    "4,wide,float32,0.1,no,adamw",
    "2,vit,bf16,0,no,adamw",
]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """For each case that is asked for what four ranks found beside one process: the worst rank's distances, by name."""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    asked = {item.callspec.params["words"] for item in items}
    cases = [words for words in CASES if words in asked]
    run = Ranks(tmp_path_factory.mktemp("sharded"), 1, 4, cases, program=PROGRAM)
    try:
        assert run.codes() == [0, 0, 0, 0], run.text()
    finally:
        run.kill()
    rows = {words: line for words in cases for line in run.text().splitlines() if line.startswith(words)}
    return {words: {k: float(v) for k, v in re.findall(r"(\w+)=(\S+)", line)} for words, line in rows.items()}


@pytest.mark.slow(but=["4,vit,*"])
@pytest.mark.parametrize("words", [words for words in CASES if "float64" in words])
def test_losses_gradients_and_weights_are_those_of_one_process(found, words):
    row = found[words]
    assert row["gradients"] < 1e-10
    assert row["evaluation"] < 1e-10
    assert row["loss"] < 1e-6  # a step adds losses up in float32
    assert row["weights"] < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("words", ["2,vit,bf16,0,no,adamw"])
def test_gradients_in_bf16_differ_by_its_steps(found, words):
    assert 1e-4 < found[words]["gradients"] < 0.1


@pytest.mark.parametrize("words", ["4,wide,float32,0.1,no,adamw"])
def test_gradients_in_float32_and_a_rank_s_share_of_weights_gradients_and_moments(found, words):
    row = found[words]
    assert row["gradients"] < 1e-5
    for kind in ("parameters", "held_gradients", "moments"):
        assert row[kind] == pytest.approx(1.0, abs=0.01)


def test_norm_and_head_in_one_unit_give_wrong_gradients_and_units_of_their_own_do_not(tmp_path):
    """A head that is called alone never completes the unit that it shares with the norm: the unit stays whole, and the next
    step computes with the weights from before the optimizer's step. No error says so."""
    program = str(Path(PROGRAM).with_name("norm_and_head.py"))
    run = Ranks(tmp_path, 1, 2, [], program=program)
    try:
        assert run.codes() == [0, 0], run.text()
    finally:
        run.kill()
    norms = {name: float(value) for name, value in re.findall(r"(\w+)=(\S+)", run.text())}
    assert norms["units"] == pytest.approx(norms["alone"], rel=1e-5)
    assert norms["grouped"] != pytest.approx(norms["alone"], rel=1e-2)
