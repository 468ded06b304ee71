"""The command line of algorun."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from . import __version__
from .errors import ExitCode, UserError
from .job import settings
from .job.engine import Engine
from .job.request import Request
from .job.values import count

HOME_BASE = "algorun-run"  # stands for /opt/ml where there is none
FLAGS = ("-h", "--help", "--per-host", "--share-nothing", "--json", "--resume")  # options of ours that take no value
ENTRY_HELP = "a script (.py, .sh), an executable, or a bundled entrypoint: ddp, pipeline, mpi-basics"


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are the launcher's (exit code 64)."""

    def error(self, message: str) -> NoReturn:
        raise UserError("command line", message, fix=f"{self.prog} -h")


def layout(text: str) -> tuple[int, int]:
    """-j: `2x4` is 2 hosts with 4 ranks each."""
    hosts, cross, slots = text.partition("x")
    if not cross:
        raise UserError("-j", f"{text!r} is not HOSTSxSLOTS", allowed="such as 2x4: 2 hosts with 4 ranks each")
    return count("-j", hosts), count("-j", slots)


def _entry_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", metavar="E", default="", help=f"what starts the ranks: {', '.join(Engine)}")
    parser.add_argument("-j", dest="layout", metavar="HxS", help="hosts x ranks per host, such as 2x4")
    parser.add_argument("--slots", metavar="N", help="ranks on each host")
    parser.add_argument("--restarts", metavar="N", help="attempts that may follow a failed one")
    parser.add_argument("--per-host", action="store_true", help="one process per host, which counts hosts as ranks")
    parser.add_argument("--share-nothing", action="store_true", help="one process per host, each alone: no ranks")
    parser.add_argument("--cwd", metavar="DIR", default="", help="folder that the program starts in")
    parser.add_argument("-m", dest="module", metavar="MODULE", default="", help="run a module, as python -m does")
    parser.add_argument("program", nargs="*", metavar="PROGRAM ..", help=f"{ENTRY_HELP}; with its own arguments")


def _parser() -> _Parser:
    parser = _Parser(prog="algorun", description="Starts training on all hosts of a SageMaker job.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"algorun {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, allow_abbrev=False)

    train = command("train", "Run the job that /opt/ml describes (SageMaker calls this).")
    train.add_argument("arguments", nargs="*", metavar="..", help="added to the arguments of the program")
    _entry_options(command("run", "Run a program on the hosts of this job."))
    plan = command("plan", "Print what would run on every host; nothing is started.")
    plan.add_argument("--json", action="store_true", help="as JSON")
    plan.add_argument("--hosts", metavar="N", help="plan for hosts algo-1 .. algo-N instead of the job's")
    _entry_options(plan)
    simulate = command("simulate", "Run a program on several simulated hosts of this machine, without Docker.")
    simulate.add_argument("--channel", action="append", default=[], metavar="NAME=DIR", help="an input channel")
    simulate.add_argument("--out", metavar="DIR", default="algorun-simulate", help="where the hosts' folders go")
    simulate.add_argument("--resume", action="store_true", help="keep the checkpoints of the simulation before")
    _entry_options(simulate)
    doctor = command("doctor", "Show what this machine offers and what is wrong with it.")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    command("metric-definitions", "Print metric_definitions for a SageMaker estimator, as JSON.")
    return parser


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Our own options end at the program; whatever follows is the program's, options that look like ours included."""
    words = list(argv)
    at = 1
    if words[:1] == ["train"]:
        at = len(words) if words[1:2] in (["-h"], ["--help"]) else 1
        options = _parser().parse_args(words[:at])
        options.arguments = words[at:]
        return options
    if words[:1] not in (["run"], ["plan"], ["simulate"]):
        return _parser().parse_args(words)
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            break
        if words[at] == "-m":
            at += 2
            break
        alone = words[at] in FLAGS or "=" in words[at] or (words[at].startswith("-j") and words[at] != "-j")
        at += 1 if alone else 2
    options = _parser().parse_args(words[:at])
    options.program = words[at:]
    return options


def request(options: argparse.Namespace) -> Request:
    """The options that describe a program and where it runs."""
    program = list(options.program)
    if program[:1] == ["--"]:
        program = program[1:]
    slots = None if options.slots is None else count("--slots", options.slots)
    if options.layout and slots is not None:
        raise UserError("--slots", "contradicts -j, which names the slots already", fix="drop one of the two")
    chosen = layout(options.layout) if options.layout else None
    from_job = not program and not options.module
    return Request(
        from_job=from_job,
        target=options.module or (program[0] if program else ""),
        args=tuple(program if options.module else program[1:]),
        module=bool(options.module),
        engine=options.engine,
        layout=chosen,
        slots=slots,
        restarts=None
        if options.restarts is None
        else count("--restarts", options.restarts, settings.MOST_RESTARTS, least=0),
        per_host=options.per_host,
        share_nothing=options.share_nothing,
        cwd=options.cwd,
    )


def _programs() -> tuple[str, str]:
    return sys.executable, str(Path(__file__).resolve().parent / "inside")


def _execute(wish: Request) -> int:
    """`train` and `run`: read, look, run. A job whose hosts are known tells them all of its own error."""
    from .event_loop import hold_signals

    hold_signals()  # a stop that comes while this reads must not end it: the other hosts are to hear of it
    from .host import run
    from .job import config, job_input
    from .job.paths import DEFAULT_BASE, Paths
    from .machine import probe
    from .outcome.report import write_error
    from .plan.engines.base import Programs

    if not wish.from_job and "SAGEMAKER_BASE_DIR" not in os.environ and not Path(DEFAULT_BASE).is_dir():
        os.environ["SAGEMAKER_BASE_DIR"] = os.path.abspath(HOME_BASE)  # at home, not below the root folder
    environ = dict(os.environ)
    paths = Paths.of(environ)
    try:
        resources = job_input.read_resources(paths, wish)
        machine = probe.look(environ)
    except UserError as error:
        write_error(paths, error)
        raise
    try:
        job, failed = config.read(wish, environ, resources), None
    except UserError as error:
        if len(resources.hosts) == 1:
            write_error(paths, error)
            raise
        failed = error
        try:
            job = config.broken(environ, resources)
        except UserError:  # the control channel's own settings are wrong: the other hosts cannot be told
            write_error(paths, error)
            raise error from None
    return run.execute(job, machine, Programs(*_programs()), error=failed)


def _hand_over() -> int:
    """ALGORUN_ENGINE=toolkit: AWS's own launcher takes this process, and does what it does."""
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
    from dataclasses import replace

    from . import codec
    from .host import entrypoint_options as bundled
    from .job import config
    from .machine import probe
    from .plan import cluster, plan, render
    from .plan.engines.base import Programs

    wish = request(options)
    hosts = count("--hosts", options.hosts, 100_000) if options.hosts else None
    if hosts is None and wish.layout is not None:
        hosts = wish.layout[0]
    if hosts is not None:
        if wish.layout is not None and wish.layout[0] != hosts:
            raise UserError("--hosts", f"{hosts} contradicts -j {options.layout}", fix="drop one of the two")
        wish = replace(wish, imagine_hosts=hosts)
    environ = dict(os.environ)
    machine = probe.look(environ)
    job = config.read(wish, environ)
    if job.launch.engine.value.needs_openmpi:
        machine = replace(machine, openmpi=probe.openmpi(environ))
    slots = cluster.assumed_slots(job, cluster.own_slots(job, machine))
    made = plan.make(
        job, cluster.resolve(job.resources.hosts, slots, job.launch.outside), machine, Programs(*_programs())
    )
    bundled.check(job.entry, sys.executable, made.world_size)
    sys.stdout.write(
        (json.dumps(codec.to_json(render.redacted(made))) if options.json else render.plan_text(made)) + "\n"
    )
    return ExitCode.OK


def _show_help(options: argparse.Namespace) -> None:
    """Becomes the bundled entrypoint where its help is wanted: no ranks, no folders."""
    program = [word for word in getattr(options, "program", []) if word != "--"]
    if not {"-h", "--help"} & set(program[1:]) or options.module:
        return
    from .job.entry import BUNDLED

    if program[0] in BUNDLED:
        os.execv(sys.executable, [sys.executable, "-I", "-m", BUNDLED[program[0]], "--help"])


def _run(options: argparse.Namespace) -> int:
    _show_help(options)
    match options.command:
        case "train":
            if settings.hands_over(os.environ):
                return _hand_over()
            return _execute(Request(from_job=True, args=tuple(options.arguments)))
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

            return doctor.run(as_json=options.json)
        case "metric-definitions":
            from .job import metric_definitions

            print(json.dumps(metric_definitions.DEFINITIONS, indent=2))
            return ExitCode.OK
        case _:
            _parser().print_help()
            return ExitCode.OK


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; a UserError is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a folder's name need not be UTF-8
    try:
        return _run(_parse(sys.argv[1:] if argv is None else argv))
    except UserError as error:
        print(f"algorun: error: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:  # `algorun plan | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the interpreter flushes it at its end
        return ExitCode.OK
