"""algorun_train.parallel is a library: pure parts load no torch, and callers convert their options into its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import algorun_train.parallel
from algorun_train.options import mp_parameters
from algorun_train.options.for_parallel import partition_options, run_options
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out

README = Path(algorun_train.parallel.__file__).with_name("README.md").read_text()


@pytest.mark.parametrize(
    "module",
    [
        "layout.layout",
        "planning.options",
        "run.options",
        "partition.memory",
        "partition.layers_to_stages",
        "partition.imbalance",
    ],
)
def test_what_decides_loads_no_torch(module):
    code = f"import sys, algorun_train.parallel.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_job_options_become_options_of_the_library():
    config = PipelineJobOptions(
        batch_size=8, microbatches=4, pp=2, optimizer="sgd", momentum=0.9, memory_limit_mb=1.5, precision="bf16"
    )
    options = partition_options(config, MpParameters(), by_layers=True)
    assert (options.limit_bytes, options.moments, options.precision) == (3 * 2**19, 1, "bf16")
    assert (options.by_layers, options.missing_file_error, options.always_profile) == (True, None, False)
    layout = lay_out(config, MpParameters(), 2)
    run = run_options(config, layout, mean=True)
    assert (run.microbatches, run.schedule, run.precision, run.mean) == (4, "1f1b", "bf16", True)
    assert layout.shape.stages == layout.stages == 2


def test_aws_s_words_stay_outside_of_the_library():
    text = '{"partitions": 2, "microbatches": 2, "auto_partition": false, "default_partition": 1}'
    config, wishes = mp_parameters.apply(PipelineJobOptions(batch_size=2, mp_parameters=text))
    options = partition_options(config, wishes)
    assert options.default_stage == 1
    assert options.fewer_stages == "fewer partitions"
    assert options.missing_file_error is not None
    assert options.missing_file_error.startswith("mp_parameters: auto_partition = false without a partition; ")


def test_the_example_of_the_readme_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    names = {"model": model, "loss": functional.cross_entropy, "example": torch.randn(4, 6)}
    names["batches"] = [(torch.randn(32, 6), torch.arange(32) % 3)]
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    exec(code[1], names)
    assert float(names["total"]) > 0
    after = [parameter.detach() for parameter in names["pipeline"].parameters()]
    assert len(after) == len(before)
    assert not any(torch.equal(*pair) for pair in zip(after, before, strict=True))


def test_the_readme_names_files_that_exist():
    folder = Path(algorun_train.parallel.__file__).parent
    named = re.findall(r"`((?:\w+/)*\w+\.py|\w+/)`", README)
    assert len(named) > 15
    assert [name for name in named if not (folder / name).exists()] == []
