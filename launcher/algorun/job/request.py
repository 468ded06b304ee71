"""What the command line asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

from .setting_values import MOST_RESTARTS
from .values import count

if TYPE_CHECKING:
    from argparse import Namespace


MOST_PLANNED = 100_000  # hosts


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The parsed command line. "" and None: the option is absent."""

    from_job: bool = False  # no program is named: the job's files name it
    target: str = ""  # the program: a path, a bundled name or (with `module`) a module
    args: tuple[str, ...] = ()  # its arguments
    module: bool = False
    engine: str = ""
    layout: tuple[int, int] | None = None  # -j: hosts, slots
    slots: int | None = None
    restarts: int | None = None
    per_host: bool = False
    per_gpu: bool = False
    share_nothing: bool = False
    cwd: str = ""
    code: str = ""  # --code: the user's code, as in the hyperparameter sagemaker_submit_directory
    args_file: str = ""  # --args-file: the program's arguments, a JSON list in a file
    imagine_hosts: int | None = None  # --hosts of plan and simulate, or the hosts of their -j


def layout(text: str, where: str = "-j") -> tuple[int, int]:
    """`2x4` is 2 hosts with 4 ranks each. `where` names the option in an error. Raises UserError."""
    hosts, cross, slots = text.partition("x")
    if not cross:
        raise UserError(where, f"{text!r} is not HOSTSxSLOTS", allowed="such as 2x4 for 2 hosts with 4 ranks each")
    return count(where, hosts), count(where, slots)


def request(options: Namespace) -> LaunchRequest:
    """The parsed options of `run`, `plan` or `simulate`. Raises UserError."""
    program = list(options.program)
    if program[:1] == ["--"]:
        program = program[1:]
    slots = None if options.slots is None else count("--slots", options.slots)
    if options.layout and slots is not None:
        raise UserError("--slots", f"{slots} cannot be combined with -j {options.layout}", fix="drop one of the two")
    chosen = layout(options.layout) if options.layout else None
    if options.per_gpu and (chosen or slots is not None):
        other = f"-j {options.layout}" if chosen else f"--slots {slots}"
        raise UserError("--per-gpu", f"cannot be combined with {other}", fix="drop one of the two")
    from_job = not program and not options.module
    if options.code and (from_job or options.module):
        raise UserError("--code", "names code, but no program in it", fix="add PROGRAM, a file or a module of the code")
    if options.args_file and (from_job or len(program) > (0 if options.module else 1)):
        fix = "give the arguments in one place, after the program's name or in the file"
        raise UserError("--args-file", f"{options.args_file!r} needs a program without other arguments", fix=fix)
    return LaunchRequest(
        from_job=from_job,
        target=options.module or (program[0] if program else ""),
        args=tuple(program if options.module else program[1:]),
        module=bool(options.module),
        engine=options.engine,
        layout=chosen,
        slots=slots,
        restarts=None if options.restarts is None else count("--restarts", options.restarts, MOST_RESTARTS, least=0),
        per_host=options.per_host,
        per_gpu=options.per_gpu,
        share_nothing=options.share_nothing,
        cwd=options.cwd,
        code=options.code,
        args_file=options.args_file,
        imagine_hosts=None if options.command == "run" else _hosts(options, chosen),
    )


def _hosts(options: Namespace, chosen: tuple[int, int] | None) -> int | None:
    """The hosts of `plan` and `simulate` that were asked for. Raises UserError."""
    hosts = count("--hosts", options.hosts, MOST_PLANNED) if options.hosts else None
    if hosts is not None and chosen is not None and chosen[0] != hosts:
        raise UserError("--hosts", f"{hosts} contradicts -j {options.layout}", fix="drop one of the two")
    return chosen[0] if hosts is None and chosen is not None else hosts
