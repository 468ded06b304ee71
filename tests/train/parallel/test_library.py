"""algorun_train.parallel is a library: pure parts load no torch, and callers convert their options into its own."""

import subprocess
import sys

import pytest

from algorun_train.options import mp_parameters
from algorun_train.options.for_parallel import partition_options, run_options
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out


@pytest.mark.parametrize(
    "module", ["layout", "options", "partition.memory", "partition.layers_to_stages", "partition.imbalance"]
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
