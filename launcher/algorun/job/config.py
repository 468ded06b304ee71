"""The job, in two steps: `job_input.parse` reads what was asked for, `decide` makes one frozen JobConfig of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from algorun.errors import UserError

from . import entry as entries
from . import hyperparameter_groups as groups
from . import hyperparameters as hp
from . import job_input, launch, modeltrainer, settings, usercode
from .engine import Engine
from .entry import Entry
from .hyperparameter_groups import Hyperparameters
from .job_input import JobInput
from .jobfiles import Resources
from .launch import Launch
from .paths import Paths
from .request import Request
from .settings import ControlSettings, Limits
from .usercode import Setup
from .values import Sourced

ENTRY_SCRIPT = "entry_script"  # what SDK v3 calls the program
ERROR_GATE_S = 10.0  # how long a host with a configuration error waits for the others, to tell them


@dataclass(frozen=True, slots=True)
class JobConfig:
    """A job, decided: what runs, how it is launched, how long it may wait.

    `setup` is what must happen before the program can start; until then `entry` is pending. `program` is the entry point
    as the user named it, `code` the folder of the user's code.
    """

    input: JobInput
    setup: Setup | None
    entry: Entry
    program: str
    code: str
    launch: Launch
    limits: Limits
    control: ControlSettings
    job_name: str
    quiet: bool  # this host's console gets no closing line: a simulation writes one for all hosts
    equal_slots: bool  # hosts with different numbers of ranks are an error

    @property
    def request(self) -> Request:
        return self.input.request

    @property
    def paths(self) -> Paths:
        return self.input.paths

    @property
    def resources(self) -> Resources:
        return self.input.resources

    @property
    def hyperparameters(self) -> Hyperparameters:
        return self.input.hyperparameters

    @property
    def environ(self) -> Mapping[str, str]:
        return self.input.environ


def read(request: Request, environ: Mapping[str, str], resources: Resources | None = None) -> JobConfig:
    """The job of this environment, read and checked. Raises UserError for the first fault found."""
    return decide(job_input.parse(request, environ, resources))


def decide(given: JobInput, *, prepared: bool = False) -> JobConfig:
    """The job that was asked for. Raises UserError. `prepared`: the code is here, and what it requires is installed."""
    program, source = _named_program(given)
    code = str(given.trainer.code if given.trainer else given.paths.code)
    entry, setup = _entry(given, program, source, prepared=prepared)
    shown = program if program and source != ENTRY_SCRIPT else entry.target
    return _config(given, entry, launch.decide(given, entry), setup=setup, program=shown, code=code)


def prepared(job: JobConfig) -> JobConfig:
    """The job once its code is here: now its program can be checked. Raises UserError."""
    return decide(job.input, prepared=True)


def broken(environ: Mapping[str, str], resources: Resources) -> JobConfig:
    """The least that is needed to tell the other hosts of a configuration error: who they are and where.

    Raises UserError where the settings of the control channel are wrong themselves.
    """
    why = "configuration error"
    alone = Launch(Sourced(Engine.NATIVE, why), (), None, Sourced(1, why), per_host=True, restarts=0)
    entry = Entry("command", "", (), "/", why)
    return _config(
        job_input.nothing(environ, resources), entry, alone, program="", code="/", limits=Limits(gate_s=ERROR_GATE_S)
    )


def _config(
    given: JobInput,
    entry: Entry,
    chosen: Launch,
    *,
    program: str,
    code: str,
    setup: Setup | None = None,
    limits: Limits | None = None,
) -> JobConfig:
    return JobConfig(
        input=given,
        setup=setup,
        entry=entry,
        program=program,
        code=code,
        launch=chosen,
        limits=limits or Limits.of(given.environ),
        control=ControlSettings.of(given.environ),
        job_name=given.hyperparameters.platform.job_name or given.environ.get("TRAINING_JOB_NAME", ""),
        quiet=settings.QUIET.read(given.environ),
        equal_slots=settings.EQUAL_SLOTS.read(given.environ),
    )


# -- the program -----------------------------------------------------------------------------------------------------


def _named_program(given: JobInput) -> tuple[str, str]:
    """The job's program as the user named it, and where; "" on a command line and where nobody names one."""
    if not given.request.from_job:
        return "", "command line"
    if given.environ.get("SAGEMAKER_PROGRAM"):
        return given.environ["SAGEMAKER_PROGRAM"], "SAGEMAKER_PROGRAM"
    named = given.hyperparameters.platform.program
    if not named and given.trainer is not None:
        return given.trainer.entry_script, ENTRY_SCRIPT
    return named, "hyperparameter sagemaker_program"


def _entry(given: JobInput, program: str, source: str, *, prepared: bool) -> tuple[Entry, Setup | None]:
    """What the ranks run, and what must happen before that."""
    request = given.request
    if not request.from_job:
        cwd = os.path.abspath(request.cwd or os.getcwd())
        return entries.of_command_line(request.target, request.args, module=request.module, cwd=cwd), None
    args = [*_args(given), *request.args]
    code = given.trainer.code if given.trainer else given.paths.code
    setup = (
        None
        if prepared or given.trainer
        else usercode.wished(given.hyperparameters.platform, given.environ, given.paths, program)
    )
    if setup is not None:
        return entries.pending(program, source, args, str(code)), setup
    wish = request.cwd or given.hyperparameters.own.cwd
    cwd = os.path.normpath(os.path.join(code, wish)) if wish else str(code)
    if cwd != str(code) and not os.path.isdir(cwd):
        raise UserError(f"hyperparameter {groups.CWD}", f"{cwd} is not a folder", fix="name a folder inside the code")
    return entries.of_job(program, source, args, code, cwd), None


def _args(given: JobInput) -> list[str]:
    """The program's arguments: those of algorun_args, else made of the user's hyperparameters."""
    if given.hyperparameters.own.args is not None:
        return list(given.hyperparameters.own.args)
    user = given.hyperparameters.user
    return hp.argv(user) if given.trainer is None else modeltrainer.argv(user)
