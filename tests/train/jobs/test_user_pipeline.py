"""algorun.pipeline: a script of one's own, in a folder with a train.py that is not ours."""

import json
import re
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.jobs.user_pipeline import pipeline
from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.run.options import RunOptions
from algorun_train.parallel.run.stage import Stage
from tests.train.training_runs import ROOT

SCRIPT = ROOT / "examples" / "pipeline_script.py"


# `make test` has models of users in the test after the next.
@pytest.mark.slow
def test_a_script_with_a_model_of_its_own_learns_in_stages(ranks, tmp_path):
    """examples/ holds a train.py, which is first on the module path of a script there."""
    assert (SCRIPT.parent / "train.py").is_file()
    run = ranks(2, 1, base=tmp_path, program=str(SCRIPT))
    assert run.codes() == [0, 0], run.text()
    losses = [float(text) for text in re.findall(r"step \d+ loss (\S+)", run.text())]
    assert len(losses) == 3
    assert losses[2] < losses[1] < losses[0]
    assert "partition: written to" in run.text()


def test_the_page_s_example_is_the_package_s():
    from algorun import pipeline

    example = textwrap.dedent(pipeline.__doc__.split("\n\n", 1)[1].split("\n\nWrong", 1)[0])
    assert example in (ROOT / "docs" / "pipeline.md").read_text()


@pytest.mark.slow(but=["0"])
@pytest.mark.parametrize("seed", range(3))
def test_models_with_several_inputs_and_what_is_wrong_with_a_call(seed, ranks):
    run = ranks(1, 2, str(seed), program=str(Path(__file__).parents[1] / "programs" / "split.py"))
    assert run.codes() == [0, 0], run.text(0) + run.text(1)
    rows = [json.loads(run.text(rank).splitlines()[-1]) for rank in range(2)]
    assert [len(row["layers"]) > 0 for row in rows] == [True, True]
    assert rows[0]["layers"] + rows[1]["layers"] == ["0", "1", "2", "3"]  # each whole on one rank
    for told in rows:
        assert max(told["difference"]) < 1e-7
        assert "the segments that this model can be cut into" in told["few layers"]
        assert told["targets"].startswith("targets of shape [4] for a batch of 8; allowed: 8 rows")
        assert told["batch"].startswith("a batch of shape [4, 8], [8, 6]; allowed: [8, 8], [8, 6], that is 4 ")
        assert "tensors of shapes [[2, 6], [1, 8]]; allowed: " in told["rows"]
        assert told["precision"].startswith(
            "option --precision: 'fp17' from algorun.pipeline is not allowed; allowed: "
        )
        assert told["option"].startswith("unknown option --sched from algorun.pipeline; fix: did you mean --schedule?")
        assert "which can be cut into 1 at most" in told["drop"]
        assert "second: the shape of what crosses depends on the data" in told["drop"]


def test_a_stage_sends_nothing_of_another_shape_than_the_boundary_s():
    """Gloo would take it for what the receiver expects."""
    stage = Stage(nn.Identity(), [TensorSpec((2, 3), torch.float32)], "cpu", RunOptions(microbatches=1), sends=True)
    assert stage(torch.ones(2, 3)).shape == (2, 3)
    with pytest.raises(UserError, match=r"the shape \[\[1, 3\]\]; allowed: \[\[2, 3\]\], as when the model was cut"):
        stage(torch.ones(1, 3))


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, left, right):
        return {"sum": self.linear(left) + right, "left": left}


@pytest.mark.parametrize("named", [False, True])
def test_one_rank_takes_models_with_several_inputs_and_outputs(named, tmp_path, monkeypatch):
    """The model is not cut then, and yet called with its own arguments."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    model, left, right = Sum(), torch.randn(8, 4), torch.randn(8, 3)

    def batch(rows: int):
        return {"right": right[:rows], "left": left[:rows]} if named else (left[:rows], right[:rows])

    def loss(output, target):
        return ((output["sum"].sum(1) - target) ** 2).mean() + output["left"].mean()

    target = torch.randn(8)
    pipe = pipeline(model, batch(4), loss, microbatches=2, target=target[:4], folder=tmp_path)
    total = pipe.step(batch(8), target)
    expected = loss(model(left, right), target)
    assert total.item() / 2 == pytest.approx(expected.item(), rel=1e-5)
    gradient = [parameter.grad.clone() for parameter in pipe.parameters()]
    model.zero_grad()
    expected.backward()
    assert all(
        torch.allclose(mine, parameter.grad, atol=1e-6)
        for mine, parameter in zip(gradient, model.parameters(), strict=True)
    )
