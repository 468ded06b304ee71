"""The job `ddp`: an image classifier, complete on every rank; each rank computes its share of the batch."""

import os
import shutil
from collections.abc import Mapping

import torch

from algorun.inside.stop_flag import StopFlag
from algorun_train.checkpoint.ddp_checkpoints import DdpCheckpoints
from algorun_train.checkpoint.single_file import SingleFileStore
from algorun_train.checkpoint.state_file import Identity
from algorun_train.common.errors import UserError
from algorun_train.data import image_data
from algorun_train.data.sampler import Batching
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.models.image_models import build, specify
from algorun_train.models.pretrained import start_from
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.world import read_world

from .skeleton import JobContext, TrainingJob, joined_job, numerics, train


def run(options: DdpJobOptions, stop: StopFlag) -> None:
    """Joins the ranks and trains. Call it on all ranks. Raises UserError."""
    with joined_job(options, read_world(os.environ), stop) as context:
        if options.compile:
            context.comm.from_leader(_check_compiler)
        train(DdpJob(options, context), context)


class DdpJob(TrainingJob):
    """Data, model and optimizer of one job."""

    options: DdpJobOptions
    source: image_data.ImageData

    def __init__(self, options: DdpJobOptions, context: JobContext) -> None:
        self.options, self._comm = options, context.comm
        self.source = image_data.load(options, context.folders, self._comm)
        self._spec = specify(options, len(self.source.classes), self.source.side)
        self._model = build(self._spec, options.seed).to(self._comm.device)
        self._optimizer = build_optimizer(options, self._model.parameters())
        self.batching = Batching(options.batch_size, options.accumulation, self._comm.rank, self._comm.size)
        store = SingleFileStore(context.folders.checkpoints, options.keep_checkpoints)
        self.checkpoints = DdpCheckpoints(store, self._identity(), self._model, self._optimizer, self._comm)

    def _identity(self) -> Identity:
        """What a checkpoint and the job that resumes it have in common. Ranks, batch, epochs and learning rate may differ."""
        shapes = {key: value for key, value in self._spec.as_dict().items() if key != "dropout"}
        order = {"optimizer": self.options.optimizer, "seed": self.options.seed}
        return shapes | order | {"class_names": list(self.source.classes), "training_images": self.source.train_count}

    def start_from_scratch(self) -> None:
        """Option --init-from: rank 0 reads the weights. `make_stepper` creates DDP, which sends them to all ranks."""
        if weights := self.options.init_from:
            self._comm.say(self._comm.from_leader(lambda: start_from(self._model, weights)))

    def introduction(self) -> list[str]:
        images, options = self.source, self.options
        weights = sum(parameter.numel() for parameter in self._model.parameters())
        return [
            f"data: {images.source}; {images.train_count} training and {images.validation_count} validation "
            f"images of {images.side} x {images.side}, {len(images.classes)} classes",
            f"model: {self._spec.model}, {weights} weights, {numerics(options, self._comm.device)}",
            f"global batch: {self.batching.global_batch} = {options.batch_size} per rank x {self._comm.size} ranks "
            f"x {options.accumulation} passes",
        ]

    def make_stepper(self) -> DataParallelSteps:
        stepper = DataParallelSteps(self._model, self._optimizer, self._comm, self.options)
        stepper.warm_up(self.source.side, self.options.batch_size)
        return stepper

    def model_state(self) -> dict[str, torch.Tensor]:
        return self._model.state_dict()

    def description(self) -> Mapping[str, object]:
        return self._spec.as_dict() | {"class_names": list(self.source.classes)}


def _check_compiler() -> None:
    if not any(shutil.which(name) for name in ("c++", "g++", "gcc", "clang")):
        raise UserError("option --compile: torch.compile needs a C++ compiler; fix: install g++, or --compile False")
