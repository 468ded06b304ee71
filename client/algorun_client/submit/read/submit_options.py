"""The options of `submit`. A key of the job file and its flag have one name: `max_run` is `--max-run`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from algorun.job.engine import Engine
from algorun_client.request.model import Kind

from . import common_options
from .common_options import Parser
from .layers import FORMS, TABLES, Given, Layer, named_values


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that stands for a key of the job file."""

    key: str
    names: tuple[str, ...]
    metavar: str  # "" for a flag without a value, which has a form --no-..
    help: str
    is_list: bool = False  # may be repeated


# --project, --bucket, --prefix, --file, --where, --profile, --region and --json are those of all commands.
FLAGS = {
    "the task": (
        Flag("task", ("--task",), "NAME", "its name, or its table in the job file (default: the program's name)"),
        Flag("kind", ("--kind",), "KIND", f"{' or '.join(Kind)} (default: training)"),
        Flag("image", ("--image",), "URI", "the image with algorun"),
        Flag("docker", ("--docker",), "", "with --where local: hosts are containers of the image, on this machine's Docker"),
        Flag("role", ("--role",), "NAME", "name or ARN of the job's role (default: $ALGORUN_ROLE, or the role of the caller)"),
        Flag("tags", (), "", ""),
    ),
    "the program": (
        Flag("code", ("--code",), "DIR", "folder of the code (default: that of the job file, else the current one)"),
        Flag("max_code", ("--max-code",), "SIZE", "refuse code of more than this size, such as 10GB (default: 2GB)"),
        Flag("add", ("--add",), "PATH", "one more file or folder for the code; may be repeated", is_list=True),
        Flag("module", ("-m",), "MODULE", "run a module, as python -m does"),
        Flag("shell", ("--shell",), "CMD", "run a shell's command line on every host"),
        Flag("cwd", ("--cwd",), "DIR", "start the program in this folder of the code; state: in the checkpoint folder"),
        Flag("engine", ("--engine",), "NAME", f"how ranks are started: {', '.join(Engine)}"),
        Flag("layout", ("-j",), "HxS", "number of hosts x ranks on each host, such as 2x4"),
        Flag("slots", ("--slots",), "N", "number of ranks on each host"),
        Flag("per_gpu", ("--per-gpu",), "", "one rank per GPU of each host"),
        Flag("per_host", ("--per-host",), "", "one rank per host: for a program that uses all GPUs of its host by itself"),
        Flag("share_nothing", ("--share-nothing",), "", "run the program once per host, without ranks"),
        Flag("restarts", ("--restarts",), "N", "restart a failed program up to N times on the same hosts"),
        Flag("hold_on_failure", ("--hold-on-failure",), "TIME", "after a failure keep the hosts, and pay for them: `algorun shell`"),
        Flag("env", (), "", ""),
        Flag("hyperparameters", (), "", ""),
    ),
    "data": (
        Flag("in", (), "", ""),
        Flag("out", ("--out",), "NAME", "a processing task uploads folder output/NAME; may be repeated", is_list=True),
        Flag("metrics", (), "", ""),
        Flag("tensorboard", ("--tensorboard",), "", "copy the folder $ALGORUN_TENSORBOARD_DIR to S3 while the job runs"),
    ),
    "hosts": (
        Flag("instance", ("--instance",), "TYPE", "such as ml.g5.12xlarge; several: the next where there is no room"),
        Flag("hosts", ("--hosts",), "N", "number of hosts (default: 1)"),
        Flag("instance_groups", (), "", ""),
        Flag("volume", ("--volume",), "GB", "disk of each host (default: 30)"),
        Flag("max_run", ("--max-run",), "TIME", "longest time of the job, such as 12h (default: 24h)"),
        Flag("max_cost", ("--max-cost",), "AMOUNT", "refuse a job that could cost more: --max-run x hosts x `price` of the job file"),
        Flag("spot", ("--spot",), "", "take spot instances, which AWS may take back: the program must resume"),
        Flag("max_wait", ("--max-wait",), "TIME", "of spot: waiting and running together (default: twice --max-run)"),
        Flag("retries", ("--retries",), "N", "let SageMaker start the job again, up to N times, after an error of its own"),
        Flag("until_done", ("--until-done",), "", "create another job after one that ran out of time or lost its hosts"),
        Flag("keep_alive", ("--keep-alive",), "TIME", "keep the hosts, and pay for them, for the next job (warm pool)"),
    ),
    "network and keys": (
        Flag("subnets", ("--subnets",), "ID,..", "subnets of a VPC"),
        Flag("security_groups", ("--security-groups",), "ID,..", "security groups of the VPC"),
        Flag("network_isolation", ("--network-isolation",), "", "the hosts reach nothing outside of the job"),
        Flag("kms_key", ("--kms-key",), "ID", "KMS key for uploads, outputs and disks"),
    ),
}  # fmt: skip
TABLE_HELP = {
    "in": "an input: a folder, s3://BUCKET/KEY, task:TASK/model, task:TASK/output/SUB, task:TASK/state/SUB, efs:ID/DIR, fsx:ID/MOUNT/DIR",
    "metrics": "a metric that SageMaker reads from the lines of the job",
    "tags": "a tag of the job",
    "env": "a variable of the job; NAME alone takes the caller's value",
    "hyperparameters": "a hyperparameter of SageMaker",
    "instance_groups": "hosts of several types, instead of --instance and --hosts",
}
PLACE = ("project", "bucket", "prefix", "where", "profile", "region")  # options of all commands that are keys too
EPILOG = "Words after PROGRAM are its arguments, unchanged. docs/submit.md shows a job file and examples."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds all options of `submit`, for the words that `split` returns first."""
    parser.epilog = EPILOG
    _add(parser, parser.add_argument_group)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options, and the program with its arguments: words after `submit`. Options end at the program's name."""
    alone = _Alone()
    _add(alone, lambda title: alone)
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            return list(words[:at]), list(words[at + 1 :])
        if words[at] == "-m":  # the words after a module's name are its arguments
            at += 2
            break
        joined = "=" in words[at] or (words[at].startswith("-j") and words[at] != "-j")
        at += 1 if joined or words[at] in alone.names else 2
    return list(words[:at]), list(words[at:])


def layer(options: argparse.Namespace, folder: str) -> Layer:
    """What the flags say. Raises UserError. `folder`: relative paths count from here."""
    single = {key: Given(f"--{key}", getattr(options, key), folder) for key in PLACE if getattr(options, key)}
    for flag in (flag for group in FLAGS.values() for flag in group if flag.names):
        value = getattr(options, flag.key)
        if value is not None and value != []:
            single[flag.key] = Given(flag.names[0], value, folder)
    given = {key: getattr(options, key) for key in TABLES}
    return Layer(
        single, {key: named_values(key, TABLES[key], all_of, folder) for key, all_of in given.items() if all_of}
    )


def _add(parser: Parser, group_of: Callable[[str], Parser]) -> None:
    common_options.add_where_options(parser)
    common_options.add_place_options(parser)
    parser.add_argument("--detach", action="store_true", help="do not follow: leave as soon as the job is created")
    parser.add_argument("--dry-run", action="store_true", help="print the request; needs no credentials, sends nothing")
    parser.add_argument(
        "--create-bucket", action="store_true", help="make the bucket first, if the account has none of its name"
    )
    parser.add_argument("--force", action="store_true", help="run the task again although nothing has changed")
    parser.add_argument(
        "--clean-state", action="store_true", help="remove the task's checkpoints first, and run it also if it is done"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="run tasks of the job file in order: those named after the options and all that they read, or all",
    )
    parser.add_argument(
        "--queue",
        metavar="TIME",
        default="",
        help="with --all or a sweep: how long to wait for the account's quota (default: 24h)",
    )
    for title, flags in FLAGS.items():
        group: Parser = group_of(title)
        for flag in flags:
            _add_flag(group, flag)
    parser.add_argument(
        "program", nargs="*", metavar="PROGRAM", help="a script, a bundled entrypoint or a command of the image"
    )


def _add_flag(group: Parser, flag: Flag) -> None:
    if not flag.names:
        group.add_argument(
            TABLES[flag.key],
            dest=flag.key,
            metavar=FORMS[flag.key].replace(" or ", "|"),
            action="append",
            default=[],
            help=TABLE_HELP[flag.key],
        )
    elif not flag.metavar:
        group.add_argument(
            *flag.names, dest=flag.key, action=argparse.BooleanOptionalAction, default=None, help=flag.help
        )
    elif flag.is_list:
        group.add_argument(
            *flag.names, dest=flag.key, metavar=flag.metavar, action="append", default=[], help=flag.help
        )
    else:
        group.add_argument(*flag.names, dest=flag.key, metavar=flag.metavar, default=None, help=flag.help)


class _Alone:
    """Collects the names of options that have no value."""

    def __init__(self) -> None:
        self.names = {"-h", "--help"}

    def add_argument(self, *names: str, **settings: object) -> object:
        """As that of a parser; adds nothing."""
        action = settings.get("action")
        if action in ("store_true", "store_false", "store_const", "count", argparse.BooleanOptionalAction):
            self.names |= {*names, *(f"--no-{name.removeprefix('--')}" for name in names)}
        return None
