"""A bundled entrypoint keeps its global batch on other hosts than the first ones that were asked for. Pure.

`ddp`: batch size of a rank (with `--tp` of a tensor group) x their number x accumulation. `pipeline`: batch size of a pipeline
x pipelines, each of `--pp` ranks, or tensor groups. Of any other program nobody knows the options: it learns the number of ranks
from its environment, and its arguments stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import replace

from algorun.common.errors import UserError
from algorun_client.submit.read import program
from algorun_client.submit.read.spec import TaskSpec

from .parts import Execution

ACCUMULATION, BATCH_SIZE, MICROBATCHES, PP, CONFIG = "accumulation", "batch_size", "microbatches", "pp", "config"
GROUPS = {PP: "pipelines", "tp": "tensor groups"}  # by the option with their number of ranks
WHERE = "--instance"


def check_layout(spec: TaskSpec, ranks: int) -> None:
    """Raises UserError if the ranks of these hosts cannot hold the pipelines that `--pp` asks for, or the tensor groups of `--tp`."""
    sizes = {name: size for name in GROUPS if (size := number(spec, name))}
    size = math.prod(sizes.values())
    if ranks % size:
        wanted = " x ".join(f"--{name} {each}" for name, each in sizes.items())
        raise UserError(
            WHERE,
            f"{spec.resources.choices[0].text} has {ranks} rank{'s'[: ranks != 1]}, which are no {GROUPS[next(iter(sizes))]} of {wanted}",
            allowed=f"a multiple of {size} ranks",
            fix=f"more hosts (TYPExN), another type, or another {' or '.join(f'--{name}' for name in sizes)}",
        )


def kept(execution: Execution, ranks: int, of_first: int) -> Execution:
    """The execution with options that give the global batch of the first hosts. Raises UserError if there are none.

    `ranks`: on the hosts of this execution. `of_first`: on those that were asked for first.
    """
    started, spec = execution.material.started, execution.spec
    if not started.is_bundled or started.program not in ("ddp", "pipeline") or ranks == of_first:
        return execution
    if program.ARGS_FILE in started.added:
        raise _refused(execution, ranks, of_first, "arguments of this length are not changed", "fewer arguments")
    change = _of_ddp if started.program == "ddp" else _of_pipeline
    for name, value in change(execution, ranks, of_first).items():
        spec = _with(spec, name, value)
    material = replace(execution.material, started=replace(started, args=spec.program.args))
    return replace(execution, spec=spec, material=material)


def _of_ddp(execution: Execution, ranks: int, of_first: int) -> dict[str, int]:
    """More accumulation on fewer ranks, and less on more ranks."""
    accumulation = _known(execution, ACCUMULATION, 1, ranks, of_first)
    if accumulation * of_first % ranks == 0:
        return {ACCUMULATION: accumulation * of_first // ranks}
    batch_size = number(execution.spec, BATCH_SIZE)
    if batch_size and batch_size * accumulation * of_first % ranks == 0:  # more ranks: each has a smaller batch
        total = batch_size * accumulation * of_first // ranks
        if total <= batch_size:
            return {ACCUMULATION: 1, BATCH_SIZE: total}
    raise _refused(
        execution,
        ranks,
        of_first,
        f"--accumulation {accumulation} x {of_first} ranks is no multiple of {ranks} ranks",
        "another number of hosts (TYPExN), --slots, or an --accumulation or --batch-size that can be divided",
    )


def _of_pipeline(execution: Execution, ranks: int, of_first: int) -> dict[str, int]:
    """A pipeline accumulates over its microbatches: their size stays, and with it the memory."""
    found = {name: number(execution.spec, name) for name in (PP, BATCH_SIZE, MICROBATCHES)}
    if missing := [f"--{name.replace('_', '-')}" for name, value in found.items() if value is None]:
        raise _refused(execution, ranks, of_first, f"{', '.join(missing)} must be given", f"add {', '.join(missing)}")
    made = {}
    for name in (BATCH_SIZE, MICROBATCHES):
        value = (found[name] or 0) * of_first
        if value % ranks:
            what = f"--{name.replace('_', '-')} {found[name]} x {of_first} ranks is no multiple of {ranks} ranks"
            raise _refused(execution, ranks, of_first, what, "another number of hosts (TYPExN), or another value")
        made[name] = value // ranks
    return made


def _known(execution: Execution, name: str, default: int, ranks: int, of_first: int) -> int:
    value = number(execution.spec, name)
    if value is None and _text(execution.spec, CONFIG) is not None:
        option = f"--{name.replace('_', '-')}"
        raise _refused(
            execution, ranks, of_first, f"{option} may stand in the file of --config", f"give {option} itself"
        )
    return default if value is None else value


def number(spec: TaskSpec, name: str) -> int | None:
    """The value of an entrypoint's option; None if it is not given, or no number (the entrypoint says so)."""
    text = _text(spec, name)
    return int(text) if text is not None and text.isascii() and text.isdigit() and int(text) else None


def _text(spec: TaskSpec, name: str) -> str | None:
    if not spec.program.args:
        return next((text for key, text in spec.hyperparameters.items() if _key(key) == name), None)
    place = _place(spec.program.args, name)
    if place is None:
        return None
    word = spec.program.args[place]
    if "=" in word:
        return word.partition("=")[2]
    return spec.program.args[place + 1] if place + 1 < len(spec.program.args) else None


def _with(spec: TaskSpec, name: str, value: int) -> TaskSpec:
    """The task with this value of an option: in its place, else as the last one."""
    args, text = list(spec.program.args), str(value)
    if not args and spec.hyperparameters:
        key = next((key for key in spec.hyperparameters if _key(key) == name), name)
        return replace(spec, hyperparameters={**spec.hyperparameters, key: text})
    place = _place(args, name)
    if place is None:
        args += [f"--{name.replace('_', '-')}", text]
    elif "=" in args[place]:
        args[place] = f"{args[place].partition('=')[0]}={text}"
    else:
        args[place + 1 : place + 2] = [text]
    return replace(spec, program=replace(spec.program, args=tuple(args)))


def _place(args: tuple[str, ...] | list[str], name: str) -> int | None:
    """Where an option stands among the words. `--batch-size` and `--batch_size` are one."""
    return next(
        (at for at, word in enumerate(args) if word.startswith("--") and _key(word.partition("=")[0]) == name), None
    )


def _key(word: str) -> str:
    return word.lstrip("-").replace("-", "_")


def _refused(execution: Execution, ranks: int, of_first: int, what: str, fix: str) -> UserError:
    chosen = execution.spec.resources.choices[0].text
    return UserError(
        WHERE,
        f"{chosen} ({ranks} ranks) cannot keep the global batch of {of_first} ranks: {what}",
        allowed=f"hosts on which {execution.material.started.program} has the same global batch",
        fix=fix,
    )
