"""The commands from a laptop to a job and back. `algorun` of the launcher hands these words over."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn, Protocol

from algorun.common import torchrun_options
from algorun.common.errors import UserError
from algorun.common.plain_text import plain
from algorun_client.common import command_line, json_lines
from algorun_client.common.codes import ClientCode, Source, kind_of
from algorun_client.common.errors import ApiError, Interrupted
from algorun_client.common.refusals import explained
from algorun_client.submit.assemble.ranks_per_host import CHOICES, Undecided

from . import doctor, fetch, fit, logs, ls, report, results, role, shell, state, status, stop, submit


class Command(Protocol):
    """A module of this room."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's options."""
        ...

    def run(self, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
        """Returns the exit code."""
        ...


COMMANDS: dict[str, tuple[Command, str]] = {
    "submit": (submit, "Send a program to SageMaker, or run it here as SageMaker would, and follow it."),
    "ls": (ls, "List jobs, the newest first."),
    "status": (status, "Show where a job is, or how it ended."),
    "logs": (logs, "Print the lines of all hosts of a job."),
    "stop": (stop, "Ask a job to end early."),
    "shell": (shell, "Open a shell on a host that is held after a failure."),
    "fetch": (fetch, "Bring home a job's model, outputs, state and logs."),
    "report": (report, "Draw a job as one HTML page."),
    "results": (results, "Show the jobs of a sweep or a tuning, the best one first."),
    "state": (state, "List or remove the checkpoints that a task keeps for its next job."),
    "doctor": (doctor, "Look at an AWS account before its first job, and change nothing."),
    "role": (role, "Print a narrow policy for the job's role, or for yourself."),
    "plan": (fit, "Show which hosts a Hugging Face folder's model can be trained on, and the cheapest."),
}


TORCHRUN_S = ("--hosts", "--slots", "--restarts")  # options of submit that torchrun calls otherwise
ENDING = tuple(getattr(signal, each) for each in ("SIGTERM", "SIGHUP") if hasattr(signal, each))  # Windows lacks one
BEFORE = "nothing was uploaded, and no job was created"


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises UserError (exit code 64)."""

    def error(self, message: str) -> NoReturn:
        raise UserError("command line", message, fix=f"{self.prog} -h")


def main(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Runs one command and returns its exit code, also after an error. Raises UserError for a wrong option without --json."""
    try:
        command, options = _parsed(words)
    except UserError as error:
        if not _wants_json(words):
            raise
        return _refused(error, as_json=True)
    try:
        with interrupted_by_signals():
            return command.run(options, environ)
    except KeyboardInterrupt as stop:
        text = str(stop) if isinstance(stop, Interrupted) else BEFORE if command is submit else ""
        _interrupted(text, as_json=options.json)
        if isinstance(stop, Interrupted) and stop.hanging:
            # Python would wait for threads that wait for an answer of S3, for minutes on a bad line.
            sys.stdout.flush()
            os._exit(ClientCode.DETACHED)
        return ClientCode.DETACHED
    except Undecided as error:
        code = _refused(error, as_json=options.json)
        for choice in CHOICES:
            print(f"algorun:   {command_line.line([words[0], choice, *words[1:]])}", file=sys.stderr)
        return code
    except UserError as error:
        return _refused(error, as_json=options.json)
    except ApiError as error:
        return _refused(explained(error), as_json=options.json)
    except BrokenPipeError:  # `algorun logs train | head`: the launcher's main ends quietly
        raise
    except OSError as error:
        return _refused(_of_this_machine(error), as_json=options.json)


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """As `main`, but raises UserError and ApiError."""
    command, options = _parsed(words)
    return command.run(options, environ)


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """SIGTERM, and a terminal that is closed, end a command as Ctrl-C does. `nohup` keeps it from the second one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _interrupted(text: str, *, as_json: bool) -> None:
    end = json_lines.LastObject(code=int(ClientCode.DETACHED), kind="interrupted", text=text)
    if as_json:
        json_lines.write_end(end)
    print(f"algorun: interrupted{': ' if text else ''}{plain(text)}", file=sys.stderr)
    if not as_json:
        print(f"algorun: exit {end.code}, kind={end.kind} source={end.source}", file=sys.stderr, flush=True)


def _parsed(words: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    command, text = COMMANDS[words[0]]
    if command is state and words[1:2] and words[1] in state.ACTIONS:
        parser = _Parser(prog=f"algorun state {words[1]}", description=state.ACTIONS[words[1]], allow_abbrev=False)
        state.add_options_of(words[1], parser)
        return command, _options(parser, list(words[2:]))
    parser = _Parser(prog=f"algorun {words[0]}", description=text, allow_abbrev=False)
    command.add_options(parser)
    if command is fit:
        options, others = parser.parse_known_args(list(words[1:]))
        options.program = fit.of_the_job(others)
        return command, options
    split = {"submit": submit.split, "doctor": doctor.split}.get(words[0])
    own, program = split(words[1:]) if split else (list(words[1:]), [])
    options = _options(parser, own)
    if split:
        options.program = program
        options.words = list(words)
    return command, options


def _options(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    options, unknown = parser.parse_known_args(words)
    if not unknown:
        return options
    fix = torchrun_options.fix(unknown, TORCHRUN_S) if parser.prog in ("algorun submit", "algorun doctor") else ""
    raise UserError("command line", f"unrecognized arguments: {' '.join(unknown)}", fix=fix or f"{parser.prog} -h")


def _wants_json(words: Sequence[str]) -> bool:
    """True if the options hold --json, whatever else is wrong with them."""
    own = submit.split(words[1:])[0] if words[0] in ("submit", "doctor") else words
    return "--json" in own


def _of_this_machine(error: OSError) -> UserError:
    """A full disk, a folder without rights."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return UserError(
        str(error.filename or "this machine"),
        error.strerror or str(error),
        fix="free some space, or set TMPDIR or --to to a folder with more" if full else "check the path and its rights",
    )


def _refused(error: UserError, *, as_json: bool) -> int:
    """Nothing was created, or a job could not be asked for. A job may end with the same code: `source` tells whose it is."""
    kind = kind_of(error.code)
    print(f"algorun: error: {plain(str(error))}", file=sys.stderr)
    if as_json:
        json_lines.write_end(json_lines.LastObject(code=error.code, kind=kind, text=str(error)))
    elif kind != "error":
        print(f"algorun: exit {error.code}, kind={kind} source={Source.CLIENT.value}", file=sys.stderr)
    return error.code
