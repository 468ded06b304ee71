"""How a program becomes SageMaker's words: what the launcher is asked to run, and files that the code needs. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from posixpath import normpath

from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun.job.entry import BUNDLED
from algorun_client.request.model import Kind

from .spec import Program

ARGS_FILE = ".algorun/args.json"  # arguments that are too long for a hyperparameter
SCRIPT = ".algorun/program.sh"  # a shell's command line, or a command of the image
LONGEST_VALUE = 2_500  # characters of a hyperparameter
LONGEST_WORD = 256  # characters of a word of a processing job's entrypoint
MOST_WORDS = 80  # of the arguments there; SageMaker allows 100 words for the whole entrypoint
PATH_ENDS = (".py", ".sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What the launcher runs."""

    program: str  # a file or module of the code, or a bundled entrypoint
    args: tuple[str, ...]
    module: bool = False
    added: Mapping[str, bytes] = field(default_factory=dict)  # files that the code archive needs beside the user's
    is_bundled: bool = False

    @property
    def args_json(self) -> str:
        """The arguments as the hyperparameter algorun_args holds them: ASCII, so any text survives the way."""
        return json.dumps(list(self.args))

    def with_args_file(self) -> Started:
        """The same program with its arguments in a file of the code."""
        return replace(self, added={**self.added, ARGS_FILE: self.args_json.encode()})


def started(program: Program, names: Collection[str]) -> Started:
    """The program among the files of the code. `names`: their paths, empty without code.

    Raises UserError if it looks like a file and is not among them.
    """
    if program.shell:
        return Started(program=SCRIPT, args=(), added={SCRIPT: _script(program.shell)})
    if program.module:
        path = program.name.replace(".", "/")
        if f"{path}.py" in names or f"{path}/__main__.py" in names:
            return Started(program=program.name, args=program.args, module=True)
        return _command(["python", "-m", program.name], program.args)
    name = program.name
    plain = normpath(name)
    if plain in names:
        return Started(program=plain, args=program.args)
    if name in BUNDLED:
        return Started(program=name, args=program.args, is_bundled=True)
    near = get_close_matches(plain, [*names, *BUNDLED], n=1, cutoff=0.75)
    looks_like_a_file = not name.startswith("/") and ("/" in name or name.endswith(PATH_ENDS))
    if looks_like_a_file or near:
        raise UserError(
            "PROGRAM",
            f"{name!r} is not among the {len(names)} files of the code",
            allowed=f"a file of the code folder, {', '.join(BUNDLED)}, or a command of the image",
            fix=f"did you mean {near[0]!r}?" if near else "check the name, --code, .gitignore and .algorunignore",
        )
    return _command([name], program.args)


def with_long_arguments(started: Started, kind: Kind) -> Started:
    """The program, with its arguments in a file of the code if SageMaker would refuse them elsewhere."""
    if kind is Kind.PROCESSING:
        refused = any(len(word) > LONGEST_WORD or not word or "\n" in word for word in started.args)
        is_too_long = refused or len(started.args) > MOST_WORDS
    else:
        is_too_long = len(started.args_json) > LONGEST_VALUE
    return started.with_args_file() if is_too_long else started


def text_value(text: str) -> str:
    """A hyperparameter that the launcher reads as this text. The launcher decodes JSON, so `true` must be sent as `"true"`."""
    try:
        loads(text)
    except ValueError:
        return text
    return json.dumps(text)


def _command(words: Sequence[str], args: tuple[str, ...]) -> Started:
    return Started(program=SCRIPT, args=args, added={SCRIPT: _script(f'exec {shlex.join(words)} "$@"')})


def _script(text: str) -> bytes:
    return f"#!/bin/bash\n{text}\n".encode("utf-8", "surrogateescape")
