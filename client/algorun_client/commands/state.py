"""`algorun state`: lists or removes the checkpoints that a task keeps for its next execution."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.sizes import size_text
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode
from algorun_client.connection import Site
from algorun_client.request.model import TaskAddress
from algorun_client.submit.history import done
from algorun_client.submit.place import state_folder
from algorun_client.submit.place.state_folder import StateFolder
from algorun_client.submit.read import task_place
from algorun_client.submit.read.common_options import add_place_options, add_where_options

from .find_job import address_of, connected

ACTIONS = {
    "ls": "List the checkpoints that a task keeps for its next job.",
    "clean": "Remove the checkpoints that a task keeps for its next job.",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command, whose action may stand behind some of them."""
    parser.add_argument("action", choices=tuple(ACTIONS), help="list the folders of the state, or remove them")
    _add(parser, "clean: only this folder, such as algo-2")


def add_options_of(action: str, parser: argparse.ArgumentParser) -> None:
    """The options behind `algorun state ACTION`."""
    parser.set_defaults(action=action)
    _add(parser, "only this folder, such as algo-2" if action == "clean" else argparse.SUPPRESS)


def _add(parser: argparse.ArgumentParser, help_of_host: str) -> None:
    parser.add_argument("job", metavar="TASK", help="TASK or PROJECT/TASK")
    parser.add_argument("--host", metavar="NAME", default="", help=help_of_host)
    add_where_options(parser)
    add_place_options(parser)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns 0, also if the task has no state."""
    if options.host and options.action == "ls":
        raise UserError("--host", "is for clean", fix="drop it: ls shows all hosts")
    known = task_place.read_place(options, environ, Path.cwd())
    connection = connected(known, environ)
    address = address_of(connection, known, options.job)
    found = state_folder.folders(connection.target.store, address)
    if options.action == "clean":
        _clean(connection, address, found, options.host, as_json=options.json)
    else:
        _list(address, found, as_json=options.json)
    if options.json:
        json_lines.write_end(json_lines.LastObject())
    return ClientCode.OK


def _list(address: TaskAddress, found: Sequence[StateFolder], *, as_json: bool) -> None:
    if as_json:
        for each in found:
            modified = each.modified.timestamp()
            json_lines.write("folder", name=each.name, files=each.files, bytes=each.size, modified=modified)
        return
    if not found:
        print(f"{address.state}: no state")
        return
    from algorun_client.common import table  # imports rich

    rows = []
    for each in found:
        newest = f"{each.modified.astimezone():%Y-%m-%d %H:%M}"
        rows.append((each.name or "(no folder)", str(each.files), size_text(each.size), newest))
    print(address.state)
    table.write(("folder", "files", "size", "newest"), rows, cut=0)


def _clean(connection: Site, address: TaskAddress, found: Sequence[StateFolder], host: str, *, as_json: bool) -> None:
    """Raises UserError while a job of the task runs, and for a folder that does not exist."""
    running = done.look(connection.target, address).running
    if running is not None:
        raise UserError(
            f"task {address.project}/{address.task}",
            f"its job {running.job} runs, and writes this state",
            fix=f"algorun stop {running.job}{connection.options}, and wait for its end",
        )
    folders = [each.name for each in found if each.name]
    if host and host not in folders:
        raise UserError("--host", f"{host!r} has no folder in {address.state}", allowed=", ".join(folders) or "none")
    count = state_folder.clean(connection.target.store, address, host)
    size = sum(each.size for each in found if host in ("", each.name))
    where = f"{address.state}{host}/" if host else address.state
    if as_json:
        json_lines.write("cleaned", uri=where, files=count, bytes=size)
    else:
        print(f"{where}: {count} file{'s'[: count != 1]} removed, {size_text(size)}" if count else f"{where}: no state")
