"""algorun.pipeline: a script of one's own, in a folder with a train.py that is not ours."""

import re

from tests.train.training_runs import ROOT

SCRIPT = ROOT / "examples" / "pipeline_script.py"


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

    example = pipeline.__doc__.split("import torch\n", 1)[1].split("\n\n`help", 1)[0]
    assert example in (ROOT / "docs" / "pipeline.md").read_text()
