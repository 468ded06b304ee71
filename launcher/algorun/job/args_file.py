"""The arguments of the user's program from a file in the code folder: a JSON list, for command lines that are longer
than a hyperparameter may be (2,500 characters)."""

from __future__ import annotations

import os
from pathlib import Path

from algorun.common.errors import UserError

from . import hyperparameters as hp
from .hyperparameter_groups import ARGS_FILE
from .jobfiles import read_json

WHERE = f"hyperparameter {ARGS_FILE}"
LIST = 'a JSON list such as ["--epochs", 10]'


def check(name: str, where: str = WHERE) -> None:
    """Raises UserError on a name that cannot be a file inside the code folder."""
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise UserError(where, f"{name!r} is not a path inside the code folder", allowed="such as args.json")


def read_args(code: Path, name: str, where: str = WHERE) -> tuple[str, ...]:
    """The arguments. `where` names the option in errors.

    Raises UserError on a missing or damaged file, and on a word that Linux cannot pass to a process.
    """
    check(name, where)
    path = code / name
    try:
        real = os.path.realpath(path)
    except ValueError:  # half of a surrogate pair: no file can have this name
        real = ""
    if not Path(real).is_relative_to(os.path.realpath(code)):
        raise UserError(where, f"{name!r} leads out of {code}", allowed="a path inside the code folder")
    if not os.path.isfile(real):
        raise UserError(where, f"{name!r} is not a file in {code}", fix=f"add it, or drop {where}")
    value = read_json(Path(real), f"{where} {name!r}", LIST)
    if not isinstance(value, list):
        raise UserError(f"{where} {name!r}", f"contains a JSON {type(value).__name__}", allowed=LIST)
    words = enumerate((hp.argument(item) for item in value), 1)
    return tuple(hp.possible(f"{where} {name!r}, argument {number}", word) for number, word in words)
