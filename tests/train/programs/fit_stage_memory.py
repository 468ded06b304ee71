"""One rank of a pipeline: what its tensors really take at the peak of a step. `fit_stage_memory.py [OPTION VALUE ..]`

The options are those of `pipeline`, with --model FOLDER and --pp N. Rank 0 prints `computed=BYTES`, what is computed ahead of the heaviest rank, and
`measured=BYTES`, of the rank that takes most: weights, moments and receive buffers as they are, and what torch's profiler sees
allocated on top of them in a step, the least of several steps.
"""

import gc
import os
import sys
from pathlib import Path

import torch

from algorun_train.fit.stage_memory import stages_memory
from algorun_train.fit.step_memory import module_of
from algorun_train.jobs.folder_options import for_folder
from algorun_train.loop.losses import PER_LABEL
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.pipeline_steps import PipelineSteps
from algorun_train.models.folder_config import ModelFolder, read_folder
from algorun_train.models.folder_model import build_model, prepare_transformers
from algorun_train.options import option_parser
from algorun_train.options.for_parallel import run_options
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.cut.layer_list import cut_at_layers
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.partition.profiling import entries
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from tests.train.programs.fit_memory import batch
from tests.train.programs.measured import allocated, measured

STEPS = 6


def stages(options: PipelineJobOptions, folder: ModelFolder, begins: tuple[int, ...], samples: int) -> ModelStages:
    """The model cut between its layers; its stages get memory of their own."""
    own = batch(options, folder.images.side if folder.images else 0, samples)
    classes = [f"class {n}" for n in range(len(folder.config["id2label"]))] if folder.images else None
    whole = build_model(folder, classes, 0)
    cutting = cut_at_layers(whole, own.inputs)
    specs = entries(cutting, "cpu", options.precision)
    return ModelStages(cutting.over(module_of(folder, options)), begins, tuple(specs))


def peak(comm: Communicator, folder: ModelFolder, begins: tuple[int, ...], options: PipelineJobOptions) -> int:
    layout = lay_out(options, MpParameters(), comm.size, torch.__version__)
    axes = process_groups.join(layout.grid, comm.rank, comm.device)
    made = stages(options, folder, begins, layout.microbatch)
    pipeline = Pipeline(made, axes, run_options(options, layout), PER_LABEL.loss)
    with torch.no_grad():
        for each in pipeline.parameters():
            each.normal_(0, 0.02)
    optimizer = build_optimizer(options, pipeline.parameters())
    stepper = PipelineSteps(pipeline, optimizer, comm, options, PER_LABEL, False)
    step = [batch(options, folder.images.side if folder.images else 0, options.batch_size)]
    stepper.train()
    for number in (1, 2):
        stepper.step(step, 1, 1e-3, number)
    states = (value for each in optimizer.state.values() for value in each.values())
    held = sum(each.inputs.nbytes + each.labels.nbytes for each in step) if pipeline.is_first else 0
    held += sum(each.nbytes for each in (*pipeline.parameters(), *pipeline.receive_buffers(), *states))
    peaks = []
    for number in range(STEPS):
        gc.collect()
        with measured() as profiled:
            stepper.step(step, 1, 1e-3, 3 + number)
        peaks.append(allocated(profiled, set())[0])
    return held + min(peaks)


asked = option_parser.read_options(PipelineJobOptions, sys.argv[1:])
with joined(read_world(os.environ)) as joined_ranks:
    prepare_transformers()
    own = read_folder(Path(asked.model or ""), "option --model")
    asked = for_folder(asked, own)
    computed, first_layers = stages_memory(own, module_of(own, asked), asked, alone=joined_ranks.size == asked.pp)
    joined_ranks.say(f"stages begin at {first_layers}, computed={computed.peak}")
    peaks = joined_ranks.gather(peak(joined_ranks, own, first_layers, asked))
    joined_ranks.say(f"of {peaks}, measured={max(peaks)}")
