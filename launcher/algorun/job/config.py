"""The job, read in two steps: `job_input.parse` reads all inputs, `decide` makes one frozen JobConfig from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass, replace

from . import channels, job_input, launch, modeltrainer, settings, usercode
from . import entry as entries
from . import hyperparameter_groups as groups
from . import hyperparameters as hp
from .engine import Engine
from .entry import DEFAULT_PROGRAM, Entry
from .hyperparameter_groups import Hyperparameters
from .job_input import JobInput
from .jobfiles import Resources
from .launch import Launch
from .limits import ControlSettings, Limits
from .paths import Paths
from .request import LaunchRequest
from .usercode import Environments, Setup
from .values import Sourced

STATE = "state"  # algorun_cwd: the folder for the state of this host
ENTRY_SCRIPT = "entry_script"  # SDK v3's name for the program
UNNAMED = (
    "this job of a tuner names no program, so the bundled ddp trains; SDK v3's tuner drops SourceCode(command=..); "
    "fix: name entry_script, or set the hyperparameter sagemaker_program=ddp if ddp is meant"
)
ERROR_GATE_S = 10.0  # a host with a configuration error waits this long for the others, to report it to them


@dataclass(frozen=True, slots=True)
class JobConfig:
    """A job: what runs, how it is launched, how long it may wait. All values are checked."""

    input: JobInput
    setup: Setup | None  # what each host does before the program can start; `entry` is then pending or may still change
    entry: Entry
    program: str  # the entry point as the user named it
    code: str  # the folder of the user's code
    launch: Launch
    limits: Limits
    control: ControlSettings
    job_name: str
    quiet: bool  # print no closing line: `algorun simulate` prints one for all hosts
    equal_slots: bool  # different numbers of ranks on the hosts are an error
    price: float  # of one host for one hour, 0.0 unknown
    figures: bool  # measure how busy the hosts are
    preflight: tuple[str, float] | None  # what follows a measurement before the first attempt, and how long it takes
    progress: str  # an expression: lines of ranks in which it is found count as progress; "": all lines
    hold_s: float  # how long hosts stay after a failure, so that somebody can look
    trackers: tuple[str, ...]  # experiment trackers that are fed with what the job writes
    metrics: Mapping[str, str]  # expressions that find a number in lines of rank 0, by the metric's name
    trace_steps: tuple[int, int] | None  # the first and the last step to trace
    warning: str  # of the code: what was given and is not used; "" without one

    @property
    def request(self) -> LaunchRequest:
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


def read_config(request: LaunchRequest, environ: Mapping[str, str], resources: Resources | None = None) -> JobConfig:
    """Reads and checks the job of this environment. Raises UserError for the first error."""
    given = job_input.parse(request, environ, resources)
    reads_code = (request.from_job or request.code) and given.code_channel is None
    return decide(given, usercode.passed_over(_source(given, _named_program(given)[0])) if reads_code else "")


def decide(given: JobInput, warning: str, *, prepared: bool = False) -> JobConfig:
    """The job that was asked for. Raises UserError. `warning`: code that is not used. `prepared`: this host has done what
    `setup` says."""
    program, source = _named_program(given)
    code = str(given.code_channel or given.paths.code)
    try:
        entry, setup = _entry(given, program, source, prepared=prepared)
    except UserError as error:
        if not warning:
            raise
        fix = f"{error.fix}; but {warning}" if error.fix else warning
        raise UserError(error.where, error.what, allowed=error.allowed, fix=fix, code=error.code) from None
    own = given.hyperparameters.own.extract
    extract = channels.to_extract(own, settings.EXTRACT.read(given.environ), given.channels)
    if extract and not prepared:
        setup = replace(setup or Setup("", "", ""), extract=extract)
    shown = program if program and source != ENTRY_SCRIPT else entry.target
    made = _config(given, entry, launch.decide(given, entry), setup=setup, program=shown, code=code)
    is_tuned = bool(given.hyperparameters.decoded.get(hp.TUNING_OBJECTIVE))
    return replace(made, warning=warning or (UNNAMED if is_tuned and entry.source == DEFAULT_PROGRAM else ""))


def prepared(job: JobConfig) -> JobConfig:
    """The job after its preparation. If its code was fetched, only now its program can be checked. Raises UserError."""
    return decide(job.input, job.warning, prepared=True)


def broken(environ: Mapping[str, str], resources: Resources) -> JobConfig:
    """A job for a host with a configuration error: just enough to report the error to the other hosts.

    Raises UserError if the settings of the control channel are wrong as well.
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
    # The ranks read them; a wrong value is refused before they start.
    settings.CUDA_ON_CPU.read(given.environ)
    _check_hooks(given.environ)
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
        price=settings.PRICE.read(given.environ),
        figures=settings.FIGURES.read(given.environ),
        preflight=_preflight(given, chosen),
        progress=settings.PROGRESS.read(given.environ),
        hold_s=settings.HOLD_S.read(given.environ),
        trackers=settings.TRACKERS.read(given.environ),
        metrics=settings.METRICS.read(given.environ),
        trace_steps=settings.TRACE_STEPS.read(given.environ),
        equal_slots=settings.EQUAL_SLOTS.read(given.environ),
        warning="",
    )


def _check_hooks(environ: Mapping[str, str]) -> None:
    """Raises UserError where a rank is to act on values that nobody looks at."""
    follows = settings.NONFINITE.read(environ)
    if not settings.HOOKS.read(environ) and follows in ("end", "skip"):
        what = f"{follows}, and with {settings.HOOKS.name}=off nobody looks for values that are not finite"
        raise UserError(settings.NONFINITE.name, what, fix="drop one of the two")


def _preflight(given: JobInput, chosen: Launch) -> tuple[str, float] | None:
    """Raises UserError where nobody could measure."""
    found = settings.PREFLIGHT.read(given.environ)
    if found is None:
        return None
    if chosen.engine.value.has_driver:
        engines = ", ".join(each.value for each in Engine if not each.has_driver)
        what = f"with the engine {chosen.engine.value.value}, which starts no ranks"
        raise UserError(settings.PREFLIGHT.name, what, allowed=engines, fix=f"unset {settings.PREFLIGHT.name}")
    from algorun.common import distributions  # few jobs need it

    distributions.need(settings.PREFLIGHT.name, entries.TRAINING)
    return found


# -- the program -----------------------------------------------------------------------------------------------------


def _named_program(given: JobInput) -> tuple[str, str]:
    """The job's program as the user named it, and the source of the name. "" for a program that lies here already, and if
    none is named."""
    request = given.request
    if not request.from_job:
        return request.target if request.code else "", entries.COMMAND_LINE
    if given.environ.get("SAGEMAKER_PROGRAM"):
        return given.environ["SAGEMAKER_PROGRAM"], "SAGEMAKER_PROGRAM"
    named = given.hyperparameters.platform.program
    if not named and given.trainer is not None:
        return given.trainer.entry_script, ENTRY_SCRIPT
    return named, "hyperparameter sagemaker_program"


def _entry(given: JobInput, program: str, source: str, *, prepared: bool) -> tuple[Entry, Setup | None]:
    """The program of the ranks, and the preparation that it needs before it can start."""
    request = given.request
    if not request.from_job and not request.code:
        cwd = os.path.abspath(request.cwd or os.getcwd())
        args = _args(given, Path(cwd), pending=False)
        entry = entries.of_command_line(request.target, args, module=request.module, cwd=cwd)
        return entry, None if prepared or entry.kind == "bundled" else _requirements(given, cwd)
    code = given.code_channel or given.paths.code
    setup = None if prepared or given.code_channel else usercode.needed(_source(given, program))
    args = _args(given, code, pending=setup is not None)
    if setup is not None:
        return entries.pending(program, source, args, str(code)), setup
    return entries.of_job(program, source, args, code, _folder(given, code)), None


def _source(given: JobInput, program: str) -> Setup:
    platform = given.hyperparameters.platform
    found = usercode.named_source(platform, given.environ, given.paths, program, named=given.request.code)
    return replace(found, environments=_environments(given))


def _requirements(given: JobInput, cwd: str) -> Setup | None:
    """The preparation of a program that lies here already: its requirements, if the job may have an environment of its own."""
    environments = _environments(given)
    if environments is None or not usercode.has_requirements(Path(cwd)):
        return None
    return Setup("", cwd, "", environments=environments)


def _environments(given: JobInput) -> Environments | None:
    """Where this job's own environment may lie; None where the launcher's is the job's own."""
    folder = settings.ENVIRONMENTS.read(given.environ)
    if not folder:
        return None
    # Simulated hosts of one job share a free port of this machine, which another job hardly gets.
    job = f"{settings.PORT.read(given.environ)} {given.environ.get('TRAINING_JOB_NAME', '')}"
    return Environments(os.path.abspath(folder), job, settings.ENVIRONMENTS.name)


def _folder(given: JobInput, code: Path) -> str:
    """The folder in which the program starts: the code folder, or the one that --cwd or algorun_cwd names in it.

    `state` means the state folder of this host, unless the code has a folder of that name. Raises UserError.
    """
    asked = given.request.cwd or given.hyperparameters.own.cwd
    cwd = os.path.normpath(os.path.join(code, asked)) if asked else str(code)
    if cwd == str(code) or os.path.isdir(cwd):
        return cwd
    if asked == STATE:
        return given.state_of(given.resources.current_host)
    where = "--cwd" if given.request.cwd else f"hyperparameter {groups.CWD}"
    raise UserError(where, f"{cwd} is not a folder", fix=f"name a folder of the user's code, or {STATE}")


def _args(given: JobInput, code: Path, *, pending: bool) -> list[str]:
    """The program's arguments: those of the command line or of --args-file; for a job that its files describe,
    algorun_args, the file of algorun_args_file, or made from the user's hyperparameters, and the command line's after that.

    `pending`: the code is not here yet, and so its file of arguments is not.
    """
    request, own = given.request, given.hyperparameters.own
    named, where = (own.args_file, "") if request.from_job else (request.args_file, "--args-file")
    if named:
        from . import args_file  # imported late: most jobs do not use it

        where = where or args_file.WHERE
        args_file.check(named, where)
        return [*(() if pending else args_file.read_args(code, named, where)), *request.args]
    if not request.from_job:
        return list(request.args)
    if own.args is not None:
        return [*own.args, *request.args]
    user = given.hyperparameters.user
    return [*(hp.argv(user) if given.trainer is None else modeltrainer.argv(user)), *request.args]
