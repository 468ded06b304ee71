"""The options of the launcher's commands, and the words of the command line that belong to the user's program."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import NoReturn

from algorun.common import __version__
from algorun.common.errors import UserError
from algorun.job.engine import Engine

from . import overview

SHELLS = ("bash", "zsh", "fish")
WIDTH = 80  # columns of help that is not read on a terminal
FLAGS = (
    "-h",
    "--help",
    "--all",
    "--per-gpu",
    "--per-host",
    "--share-nothing",
    "--json",
    "--resume",
    "--fit",
)  # options without a value
WITHOUT_HOSTS = ("--slots", "--restarts")  # options that torchrun calls otherwise
WITH_HOSTS = (*WITHOUT_HOSTS, "--hosts")
PROGRAM_HELP = "a script (.py, .sh), an executable, or a bundled entrypoint (ddp, pipeline, mpi-basics, measure), followed by its arguments"


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal. argparse's own way to find the width imports shutil: 2 ms of every start."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    """The width of the terminal; COLUMNS has the first word, as in argparse."""
    said = os.environ.get("COLUMNS", "")
    if len(said) < 5 and said.isascii() and said.isdigit() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(1).columns or WIDTH
    except OSError:  # not a terminal
        return WIDTH


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises UserError (exit code 64)."""

    def error(self, message: str) -> NoReturn:
        raise UserError("command line", message, fix=f"{self.prog} -h")


def _entry_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", metavar="NAME", default="", help=f"how ranks are started: {', '.join(Engine)}")
    parser.add_argument("-j", dest="layout", metavar="HxS", help="number of hosts x ranks on each host, such as 2x4")
    parser.add_argument("--slots", metavar="N", help="number of ranks on each host")
    parser.add_argument("--restarts", metavar="N", help="restart a failed job up to N times")
    parser.add_argument("--per-gpu", action="store_true", help="one rank per GPU of each host")
    parser.add_argument("--per-host", action="store_true", help="one rank per host: WORLD_SIZE is the number of hosts")
    parser.add_argument("--share-nothing", action="store_true", help="run the program once per host, without ranks")
    parser.add_argument("--cwd", metavar="DIR", default="", help="start the program in this folder")
    parser.add_argument(
        "--code",
        metavar="URI",
        default="",
        help="fetch the code from s3://.., a folder or a tar file; PROGRAM is a file of it",
    )
    parser.add_argument(
        "--args-file", metavar="FILE", default="", help="the program's arguments: a JSON list in a file beside the code"
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", default="", help="run a module, as python -m does")
    parser.add_argument("program", nargs="*", metavar="PROGRAM", help=PROGRAM_HELP)


def parser() -> _Parser:
    """All commands of the launcher with their options."""
    made = _Parser(
        prog="algorun",
        description="Runs training on all hosts of a SageMaker job, or on simulated hosts of this machine.",
        epilog=overview.TEXT,
        formatter_class=_Help,
        usage="algorun [-h] [--version] COMMAND ...",
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"algorun {__version__}")
    commands = made.add_subparsers(
        prog="algorun", dest="command", metavar="COMMAND", help=argparse.SUPPRESS, parser_class=_Parser
    )

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, description=text, formatter_class=_Help, allow_abbrev=False)

    train = command("train", "Run the job that the files in /opt/ml describe. SageMaker calls this command.")
    train.add_argument(
        "arguments", nargs="*", metavar="ARGUMENT", help="more arguments for the program, after the job's own"
    )
    _entry_options(command("run", "Run a program on all hosts of this job."))
    plan = command("plan", "Print what would run on every host, without starting it.")
    plan.add_argument("--json", action="store_true", help="print JSON")
    plan.add_argument(
        "--all", action="store_true", help="show every host; without it of many hosts the first and the last"
    )
    plan.add_argument(
        "--fit",
        action="store_true",
        help="show which hosts a model can be trained on, and the cheapest (plan --fit -h)",
    )
    plan.add_argument("--hosts", metavar="N", help="plan for N hosts, algo-1 to algo-N, instead of the job's hosts")
    _entry_options(plan)
    simulate = command("simulate", "Run a program on several simulated hosts of this machine, without Docker.")
    simulate.add_argument(
        "--hosts", metavar="N", help="simulate N hosts, algo-1 to algo-N; -j 2x4 is --hosts 2 --slots 4"
    )
    simulate.add_argument(
        "--channel",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="use folder DIR as input channel NAME; may be repeated",
    )
    simulate.add_argument(
        "--out",
        metavar="DIR",
        default="algorun-simulate",
        help="folder for the hosts' /opt/ml trees (default: %(default)s)",
    )
    simulate.add_argument(
        "--resume", action="store_true", help="keep the previous simulation's checkpoints, to resume from them"
    )
    _entry_options(simulate)
    doctor = command("doctor", "Check this machine, or with --aws an account; show what would make a job fail.")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument(
        "--aws",
        action="store_true",
        help="look at the AWS account instead; takes the options of `submit` (doctor --aws -h)",
    )
    doctor.add_argument(
        "--measure",
        action="store_true",
        help="also measure this machine's GPUs (or CPU), memory and disk; `algorun submit measure` measures all hosts of a job",
    )
    shell = command("shell", "Open a shell on a host that is held after a failure.")
    shell.add_argument(
        "folder",
        nargs="?",
        default="",
        metavar="DIR",
        help="a simulated host's /opt/ml tree (default: this host's /opt/ml); `algorun shell JOB HOST -h` is for hosts of a job",
    )
    command("metric-definitions", "Print metric_definitions for a SageMaker estimator, as JSON.")
    completion = command("completion", "Print what bash, zsh or fish needs to complete these commands.")
    completion.add_argument(
        "shell",
        choices=SHELLS,
        metavar="SHELL",
        help=f"{', '.join(SHELLS)}; the first lines printed say where to keep it",
    )
    return made


def names_a_job(words: Sequence[str]) -> bool:
    """Whether these words after `shell` are a job and its host, or options of the client's commands."""
    own = [word for word in words if word not in ("-h", "--help")]
    return len(own) > 1 or any(word.startswith("-") for word in own)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the launcher. They end at the program's name: all words after it are the program's arguments."""
    words = list(argv)
    at = 1
    if words[:1] == ["train"]:
        at = len(words) if words[1:2] in (["-h"], ["--help"]) else 1
        options = _options(words[:at])
        options.arguments = words[at:]
        return options
    if words[:1] not in (["run"], ["plan"], ["simulate"]):
        return _options(words)
    at = end_of_options(words)
    options = _options(words[:at])
    options.program = words[at:]
    return options


def end_of_options(words: Sequence[str]) -> int:
    """How many of the words are the command and its own options: all before the program's name."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            break
        if words[at] == "-m":
            at += 2
            break
        alone = words[at] in FLAGS or "=" in words[at] or (words[at].startswith("-j") and words[at] != "-j")
        at += 1 if alone else 2
    return at


def _options(words: list[str]) -> argparse.Namespace:
    options, unknown = parser().parse_known_args(words)
    if not unknown:
        return options
    from algorun.common import torchrun_options

    here = {"run": WITHOUT_HOSTS, "plan": WITH_HOSTS, "simulate": WITH_HOSTS}.get(words[0])
    fix = torchrun_options.fix(unknown, here) if here else ""
    command = f"algorun {options.command}" if options.command else "algorun"
    raise UserError("command line", f"unrecognized arguments: {' '.join(unknown)}", fix=fix or f"{command} -h")
