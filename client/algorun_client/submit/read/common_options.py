"""Options that several commands have, under the same names."""

from __future__ import annotations

from typing import Any, Protocol

from .spec import Where


class Parser(Protocol):
    """What an option is added to: an argument parser, a group of one, or something that collects names."""

    def add_argument(self, *names: str, **settings: Any) -> object:  # settings: argparse's own types
        """As that of argparse.ArgumentParser."""
        ...


def add_where_options(parser: Parser) -> None:
    """Where jobs run, and how the answer is printed."""
    parser.add_argument("--where", choices=tuple(Where), default=None, help="aws (the default), or local: this machine")
    parser.add_argument("--profile", metavar="NAME", default="", help="a profile of ~/.aws/config")
    parser.add_argument(
        "--region",
        metavar="NAME",
        default="",
        help="an AWS region; for submit and role several: A,B, in order of preference",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


def add_place_options(parser: Parser) -> None:
    """Where a task is kept."""
    parser.add_argument(
        "--file", metavar="PATH", default="", help="the job file (default: algorun.toml, if there is one)"
    )
    parser.add_argument("--project", metavar="NAME", default="", help="the project of the task")
    parser.add_argument("--bucket", metavar="NAME", default="", help="the bucket (default: sagemaker-REGION-ACCOUNT)")
    parser.add_argument("--prefix", metavar="KEY", default="", help="a folder in the bucket above the project")


def add_job_argument(parser: Parser) -> None:
    """The job that a command is about."""
    parser.add_argument("job", metavar="JOB", help="TASK, PROJECT/TASK (its newest job), or a job's name")
    add_where_options(parser)
    add_place_options(parser)
