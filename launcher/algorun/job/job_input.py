"""All inputs of a job, parsed: command line, SageMaker's files, environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass, field

from . import channels as job_channels
from . import jobfiles, modeltrainer, settings
from .channels import Channel
from .hyperparameter_groups import Hyperparameters
from .jobfiles import Resources
from .modeltrainer import ModelTrainer
from .paths import Paths
from .request import LaunchRequest


@dataclass(frozen=True, slots=True)
class JobInput:
    """What the user and SageMaker asked for; `config.decide` decides between contradictions."""

    request: LaunchRequest
    paths: Paths
    resources: Resources
    hyperparameters: Hyperparameters
    described: Mapping[str, Mapping[str, object]]  # inputdataconfig.json: the description of each input channel
    channels: Mapping[str, Channel]  # by name; in a Processing job its inputs
    processing: bool  # a Processing job
    trainer: ModelTrainer | None  # the request of SDK v3's ModelTrainer
    environ: Mapping[str, str] = field(repr=False)

    @property
    def code_channel(self) -> Path | None:
        """The channel with the code of a ModelTrainer's job; None where the code is fetched, or lies in the code folder."""
        return self.trainer.code if self.trainer else None

    @property
    def state(self) -> str:
        """The folder for the state of the task, which its hosts share; SSM_STATE overrides it (simple-sagemaker's name)."""
        own = self.paths.processing / "state" if self.processing else self.paths.checkpoints
        return self.environ.get("SSM_STATE") or str(own)

    def state_of(self, host: str) -> str:
        """The folder for the state of one host, below that of the task."""
        return f"{self.state.rstrip('/')}/{host}"


def parse(request: LaunchRequest, environ: Mapping[str, str], resources: Resources | None = None) -> JobInput:
    """Reads SageMaker's files. Raises UserError for the first error."""
    settings.REQUEST_FORMAT.read(environ)  # first: a newer request may contain anything
    paths = Paths.of(environ)
    resources = resources or read_resources(paths, request)
    if request.layout is not None and request.layout[0] != len(resources.hosts):
        raise UserError(
            "-j",
            f"asks for {request.layout[0]} hosts, but {resources.source} names {len(resources.hosts)}",
            fix=f"-j {len(resources.hosts)}x{request.layout[1]}, or algorun simulate for hosts on one machine",
        )
    processing = not _describes_training(paths) and paths.processing_resourceconfig.exists()
    described = jobfiles.read_channels(paths.inputdataconfig)
    hyperparameters = Hyperparameters.parse(jobfiles.read_hyperparameters(paths.hyperparameters))
    submit_directory = hyperparameters.platform.submit_directory
    return JobInput(
        request=request,
        paths=paths,
        resources=resources,
        hyperparameters=hyperparameters,
        described=described,
        channels=job_channels.of_processing(paths) if processing else job_channels.of_training(described, paths),
        processing=processing,
        trainer=modeltrainer.read_modeltrainer(paths, submit_directory) if request.from_job else None,
        environ=environ,
    )


def nothing(environ: Mapping[str, str], resources: Resources) -> JobInput:
    """An empty request on these hosts."""
    return JobInput(
        request=LaunchRequest(),
        paths=Paths.of(environ),
        resources=resources,
        hyperparameters=Hyperparameters.parse({}),
        described={},
        channels={},
        processing=False,
        trainer=None,
        environ=environ,
    )


def read_resources(paths: Paths, request: LaunchRequest) -> Resources:
    """The hosts of the job; without SageMaker's job description, one host algo-1."""
    if request.imagine_hosts is not None:
        return jobfiles.imagined(request.imagine_hosts, "--hosts")
    if _describes_training(paths):
        return jobfiles.read_resources(paths.resourceconfig)
    if paths.processing_resourceconfig.exists():
        return jobfiles.read_resources(paths.processing_resourceconfig)
    return jobfiles.imagined(1, f"no job description in {paths.config}")


def _describes_training(paths: Paths) -> bool:
    return any(path.exists() for path in (paths.resourceconfig, paths.hyperparameters, paths.inputdataconfig))
