"""Reads the JSON files of a model's folder, and turns what transformers raises into errors for the user."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from algorun_train.common.errors import UserError
from algorun_train.common.json_text import loads

COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # transformers colours some of its errors

Json = dict[str, Any]  # Any: what a file holds; whoever reads a value checks it


def read_json(where: str, file: Path, made_by: str) -> Json:
    """The object in a file. `made_by` names what has it, for messages. Raises UserError."""
    try:
        found = loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{where}: {file.name} cannot be read: {error.strerror}; allowed: {made_by}; fix: give such a folder"
        ) from None
    except ValueError as error:
        raise UserError(
            f"{where}: {file.name} is not JSON: {error}; allowed: what save_pretrained writes; fix: save the model again"
        ) from None
    if not isinstance(found, dict):
        raise UserError(f"{where}: {file.name} holds a {type(found).__name__}; allowed: an object; fix: save it again")
    return found


@contextlib.contextmanager
def refused(what: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns whatever transformers raises into one UserError, except for the classes in `but`. It has no one class for what it
    refuses."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, but):
            raise
        raise UserError(
            f"{what}: {_first_words(error)}; allowed: what save_pretrained writes; fix: save it again, complete and unchanged"
        ) from None


def _first_words(error: Exception) -> str:
    """The first line of an error, with the next one where it only announces that; of a KeyError, which holds a bare name, its class."""
    lines = [line.strip() for line in COLOUR.sub("", str(error)).splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return (f"no {text}" if isinstance(error, KeyError) else text)[:200] or type(error).__name__
