"""The options of `algorun report`, also where the client fetches the job first. Pure."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

# Options with a value that find a JOB; the client declares them. Here they tell FOLDER from their values.
OF_JOBS = ("--where", "--profile", "--region", "--file", "--project", "--bucket", "--prefix")


def add_page_options(parser: argparse.ArgumentParser, default: str) -> None:
    """What the page shows, and where it goes. `default`: its path if none is given."""
    parser.add_argument("--out", metavar="FILE", default="", help=f"the page (default: {default})")
    parser.add_argument(
        "--metric", metavar="NAME=REGEX", action="append", default=[], help="one more metric; may be repeated"
    )
    parser.add_argument(
        "--price", metavar="RATE", default="", help="the price of one host for one hour (default: that of the job file)"
    )


class _Unclear(Exception):
    """The words are no command line of this command."""


class _Silent(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Unclear(message)


def subject(words: list[str]) -> str:
    """What the page is about: FOLDER or JOB; "" if the words do not say it."""
    parser = _Silent(add_help=False, allow_abbrev=False)
    parser.add_argument("subject", nargs="?", default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    add_page_options(parser, "")
    for option in OF_JOBS:
        parser.add_argument(option)
    try:
        return str(parser.parse_args(words).subject)
    except _Unclear:
        return ""


def is_path(text: str) -> bool:
    """True if a text can only be a path: `/a/b`, `./a`, `..`. A job's name has no such form."""
    return Path(text).is_absolute() or text.split("/")[0] in (".", "..")
