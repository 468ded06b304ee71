"""Writes what a shell needs to complete `algorun`: launcher/algorun/commands/completions/SHELL, from the parsers themselves.

python docs/completions.py after a change of options; tests/repository/test_completions.py compares. It needs shtab.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import shtab

from algorun.commands import command_line, overview
from algorun_client.commands.main import COMMANDS

FOLDER = Path(__file__).parents[1] / "launcher" / "algorun" / "commands" / "completions"
PLACES = {"DIR": shtab.DIRECTORY, "FILE": shtab.FILE, "PATH": shtab.FILE, "PROGRAM": shtab.FILE, "TO": shtab.DIRECTORY}


def parser() -> argparse.ArgumentParser:
    """All commands of the launcher and of the client."""
    made = argparse.ArgumentParser(prog="algorun", add_help=False)
    made.add_argument("-h", "--help", action="store_true", help="show all commands")
    made.add_argument("--version", action="store_true", help="show the version")
    commands = made.add_subparsers()
    own = command_line.parser()
    listed = next(each for each in own._actions if isinstance(each, argparse._SubParsersAction)).choices
    texts = dict(line.split(maxsplit=1) for line in overview.TEXT.splitlines() if line.startswith("  "))
    for name, text in texts.items():
        command = commands.add_parser(name, help=text.replace("'", ""))
        if name in listed:
            _copy(listed[name], command)
        else:
            COMMANDS[name][0].add_options(command)
        for action in command._actions:
            if action.metavar in PLACES:
                action.complete = PLACES[action.metavar]  # type: ignore[attr-defined]
    return made


def _copy(source: argparse.ArgumentParser, target: argparse.ArgumentParser) -> None:
    for action in source._actions:
        if "-h" not in action.option_strings:
            target._add_action(action)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for shell in command_line.SHELLS:
        (FOLDER / shell).write_text(text(shell), encoding="utf-8")


def text(shell: str) -> str:
    """The file for one shell."""
    return shtab.complete(parser(), shell) + "\n"


if __name__ == "__main__":
    sys.exit(main())
