"""Runs the command that a command line names."""

from __future__ import annotations

import argparse
import errno
import gc
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .commands import command_line, overview
from .common.errors import ExitCode, UserError
from .common.process_limit import cannot_start, is_limit
from .common.standard_streams import keep_open
from .common.systems import need_linux, refuse_windows
from .job import settings
from .job.request import LaunchRequest, request

NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
HOME_BASE = "algorun-run"  # the job folder on a machine without /opt/ml


def _programs() -> tuple[str, str]:
    return sys.executable, str(Path(__file__).resolve().parent / "inside")


def _execute(asked: LaunchRequest) -> int:
    """`train` and `run`. If this host's configuration is wrong but the hosts are known, all hosts report the error."""
    from .common.event_loop import hold_signals

    need_linux("algorun run")
    hold_signals()  # a stop that arrives now must not end this process: it has to tell the other hosts
    from .host import run
    from .job import commit_variable, config, job_input
    from .job.paths import DEFAULT_BASE, Paths
    from .machine import probe
    from .outcome.report import write_error
    from .plan.engines.base import Programs

    if not asked.from_job and "SAGEMAKER_BASE_DIR" not in os.environ and not Path(DEFAULT_BASE).is_dir():
        os.environ["SAGEMAKER_BASE_DIR"] = os.path.abspath(HOME_BASE)  # at home /opt/ml is not writable
    os.environ.update(commit_variable.of_command_line(asked, os.environ))
    environ = dict(os.environ)
    os.environ.pop(settings.TOKEN.name, None)  # this process alone needs it, and all others inherit the environment
    paths = Paths.of(environ)
    try:
        resources = job_input.read_resources(paths, asked)
        machine = probe.look(environ)
    except UserError as error:
        write_error(paths, error)
        raise
    try:
        job, failed = config.read_config(asked, environ, resources), None
    except UserError as error:
        if len(resources.hosts) == 1:
            write_error(paths, error)
            raise
        failed = error
        try:
            job = config.broken(environ, resources)
        except UserError:  # the settings of the control channel are wrong: this host cannot tell the others
            write_error(paths, error)
            raise error from None
    _collect()
    return run.execute(job, machine, Programs(*_programs()), error=failed)


def _collect() -> None:
    """The start is over: turns the garbage collector on again (__main__.py has turned it off). It ignores the objects of the start."""
    gc.freeze()
    gc.enable()


def _hand_over() -> int:
    """ALGORUN_ENGINE=toolkit: replaces this process by AWS's own launcher, sagemaker-training."""
    import importlib.util

    from .job.paths import Paths
    from .outcome.report import write_error

    if importlib.util.find_spec("sagemaker_training") is None:
        error = UserError(
            settings.ENGINE.name, f"{settings.TOOLKIT!r}, but sagemaker-training is not installed", fix="pip install sagemaker-training"
        )  # fmt: skip
        write_error(Paths.of(os.environ), error)
        raise error
    os.execv(sys.executable, [sys.executable, "-c", "from sagemaker_training.cli.train import main; main()"])


def _plan(options: argparse.Namespace) -> int:
    from algorun.common.fast_dataclasses import replace

    from .common import codec
    from .host.preparing import entrypoint_options as bundled
    from .job import config
    from .machine import probe
    from .plan import cluster, plan, render
    from .plan.engines.base import Programs

    asked = request(options)
    environ = dict(os.environ)
    machine = probe.look(environ)
    job = config.read_config(asked, environ)
    if job.launch.engine.value.needs_openmpi:
        machine = replace(machine, openmpi=probe.openmpi(environ))
    if job.launch.engine.value.has_driver:
        from .machine import ray_installation

        machine = replace(machine, ray=ray_installation.look(environ))
    if job.warning:
        print(f"algorun: warning: {job.warning}", file=sys.stderr)
    slots = cluster.assumed_slots(job, cluster.own_slots(job, machine))
    made = plan.make(job, cluster.resolve(job, slots), machine, Programs(*_programs()))
    ranks = [len(host.ranks) for host in made.hosts if host.joined and host.ranks]
    made = replace(made, groups=bundled.check(job.entry, sys.executable, ranks))
    sys.stdout.write(
        (
            json.dumps(codec.to_json(render.redacted(made)))
            if options.json
            else render.plan_text(made, whole=options.all)
        )
        + "\n"
    )
    return ExitCode.OK


def _show_help(options: argparse.Namespace) -> None:
    """`run ddp --help`: replaces this process by the bundled entrypoint, which prints its help. Starts no ranks."""
    program = [word for word in getattr(options, "program", []) if word != "--"]
    if not {"-h", "--help"} & set(program[1:]) or options.module:
        return
    from .common import distributions
    from .job.entry import BUNDLED, TRAINING

    if program[0] in BUNDLED:
        distributions.need(f"entrypoint {program[0]}", TRAINING)
        os.execv(sys.executable, [sys.executable, "-I", "-m", BUNDLED[program[0]], "--help"])


def _run(options: argparse.Namespace) -> int:
    _show_help(options)
    match options.command:
        case "train":
            if settings.hands_over(os.environ):
                return _hand_over()
            return _execute(LaunchRequest(from_job=True, args=tuple(options.arguments)))
        case "run":
            return _execute(request(options))
        case "plan":
            return _plan(options)
        case "simulate":
            from .commands import simulate

            channels = simulate.channels(options.channel)
            out = Path(options.out)
            return simulate.run(request(options), channels, out, os.environ, sys.executable, resume=options.resume)
        case "doctor":
            from .commands import doctor

            return doctor.run(as_json=options.json, measure=options.measure)
        case "shell":
            from .commands import shell

            return shell.run(options.folder, os.environ)
        case "metric-definitions":
            from .job import metric_definitions

            print(json.dumps(metric_definitions.DEFINITIONS, indent=2))
            return ExitCode.OK
        case "completion":
            folder = Path(__file__).parent / "commands" / "completions"  # made by docs/completions.py
            print((folder / options.shell).read_text(encoding="utf-8"), end="")
            return ExitCode.OK
        case _:
            command_line.parser().print_help()
            return ExitCode.OK


def _client(words: Sequence[str]) -> int:
    from .commands import client

    return client.run(words)


def _report(words: Sequence[str]) -> int:
    from .commands import report

    return report.run(words)


def _command(words: Sequence[str]) -> int:
    if words[:1] == [overview.REPORT]:
        return _report(words[1:])
    if words[:1] and not words[0].startswith("-"):
        _check_command(words[0])
    of_account = words[:1] == ["doctor"] and "--aws" in words
    of_fit = words[:1] == ["plan"] and "--fit" in words[: command_line.end_of_options(words)]
    of_job = words[:1] == ["shell"] and command_line.names_a_job(words[1:])
    of_client = of_account or of_fit or of_job or (words[:1] and words[0] in overview.CLIENT)
    return _client(words) if of_client else _run(command_line.parse(words))


def _check_command(word: str) -> None:
    """Raises UserError for a word that is no command. argparse knows those of the launcher alone."""
    known = (*overview.LAUNCHER, overview.REPORT, *overview.CLIENT)
    if word in known:
        return
    from difflib import get_close_matches  # only an error needs it

    near = [] if "." in word or os.path.isfile(word) else get_close_matches(word, known, n=1)
    otherwise = f"algorun run {word} runs a program; algorun -h explains the commands"
    fix = f"did you mean {near[0]!r}?" if near else otherwise
    raise UserError("command line", f"{word!r} is no command", allowed=", ".join(known), fix=fix)


def _no_prompt() -> None:
    """Takes PYTHONINSPECT away from this program and all that it starts. At its end Python would ask for input, which nobody gives
    here, and leave with 1 after success or with 0 after a failure."""
    if not os.environ.pop("PYTHONINSPECT", ""):
        return
    print("algorun: PYTHONINSPECT is left out: no program of a job gets a prompt", file=sys.stderr, flush=True)
    if sys.flags.inspect:  # this Python has read it already
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit code; a UserError becomes one line on stderr."""
    keep_open()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a folder's name may not be UTF-8
    words = list(sys.argv[1:] if argv is None else argv)
    _no_prompt()
    try:
        refuse_windows()
        if words[:1] != ["train"]:  # its folders have names of their own
            _check_folder()
        if words[:1] not in (["train"], ["run"]):  # these two call it once they have started
            _collect()
        code = _command(words)
        try:
            sys.stdout.flush()
        except OSError:
            if words[:1] not in (["train"], ["run"], ["simulate"]):
                raise
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  a job ends as it ends, whoever reads its lines
        return code
    except UserError as error:
        from .common.plain_text import plain  # only an error needs these
        from .common.secret_values import hidden

        print(f"algorun: error: {plain(hidden(str(error)))}", file=sys.stderr)
        return error.code
    except RuntimeError as error:
        if not is_limit(error):
            raise
        return _refused_process()
    except BlockingIOError as error:
        if not is_limit(error):
            raise
        return _refused_process()
    except BrokenPipeError:  # `algorun plan | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the interpreter flushes it when it exits
        return ExitCode.OK
    except OSError as error:
        if error.filename is not None or error.errno not in NOT_WRITTEN:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  as above
        print(f"algorun: error: stdout: {error.strerror}; fix: write it where there is space", file=sys.stderr)
        return ExitCode.CONFIGURATION


def _refused_process() -> int:
    limit = cannot_start("algorun")
    print(f"algorun: error: {limit}", file=sys.stderr)
    return limit.code


def _check_folder() -> None:
    """Raises UserError if the current folder is gone: nearly every command names files by it."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            "the current folder", f"has been removed, or cannot be read ({error.strerror})", fix="cd to another one"
        ) from None
