"""Everything that was said about a job, parsed: the command line, the platform's files, the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from algorun.errors import UserError

from . import jobfiles, modeltrainer
from .hyperparameter_groups import Hyperparameters
from .jobfiles import Resources
from .modeltrainer import ModelTrainer
from .paths import Paths
from .request import Request


@dataclass(frozen=True, slots=True)
class JobInput:
    """What the user and the platform asked for; nothing is decided yet.

    `channels` maps the name of each input channel to its description, `trainer` is what SDK v3's ModelTrainer asks for.
    """

    request: Request
    paths: Paths
    resources: Resources
    hyperparameters: Hyperparameters
    channels: Mapping[str, Mapping[str, object]]
    trainer: ModelTrainer | None
    environ: Mapping[str, str] = field(repr=False)


def parse(request: Request, environ: Mapping[str, str], resources: Resources | None = None) -> JobInput:
    """Reads the platform's files. Raises UserError for the first fault found."""
    paths = Paths.of(environ)
    resources = resources or read_resources(paths, request)
    if request.layout is not None and request.layout[0] != len(resources.hosts):
        raise UserError(
            "-j",
            f"asks for {request.layout[0]} hosts, but {resources.source} names {len(resources.hosts)}",
            fix=f"-j {len(resources.hosts)}x{request.layout[1]}, or algorun simulate for hosts on one machine",
        )
    return JobInput(
        request=request,
        paths=paths,
        resources=resources,
        hyperparameters=Hyperparameters.parse(jobfiles.read_hyperparameters(paths.hyperparameters)),
        channels=jobfiles.read_channels(paths.inputdataconfig),
        trainer=modeltrainer.read(paths) if request.from_job else None,
        environ=environ,
    )


def nothing(environ: Mapping[str, str], resources: Resources) -> JobInput:
    """A job that asks for nothing on these hosts."""
    return JobInput(Request(), Paths.of(environ), resources, Hyperparameters.parse({}), {}, None, environ)


def read_resources(paths: Paths, request: Request) -> Resources:
    """The hosts of the job, or one imagined host where no platform has written a job description."""
    if request.imagine_hosts is not None:
        return jobfiles.imagined(request.imagine_hosts, "--hosts")
    described = any(path.exists() for path in (paths.resourceconfig, paths.hyperparameters, paths.inputdataconfig))
    if described:
        return jobfiles.read_resources(paths.resourceconfig)
    if paths.processing_resourceconfig.exists():
        return jobfiles.read_resources(paths.processing_resourceconfig)
    return jobfiles.imagined(1, f"no job description in {paths.config}")
