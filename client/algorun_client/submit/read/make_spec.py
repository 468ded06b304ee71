"""Job file + flags -> TaskSpec. Pure: paths are joined, never opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from algorun.common.errors import UserError
from algorun.job.engine import Engine
from algorun.job.request import layout as hosts_and_slots
from algorun.job.setting_values import MOST_RESTARTS
from algorun_client.common import settings
from algorun_client.request import names
from algorun_client.request.model import Kind

from . import input_sources, values
from .job_file import JobFile
from .layers import FORMS, PRICE, Given, Layer, merged
from .spec import (
    HostChoice,
    LaunchSpec,
    Network,
    Program,
    ResourceSpec,
    TaskSpec,
    Where,
)

T = TypeVar("T")

MAX_CODE = 2_000_000_000  # bytes
MAX_RUN_S = 86_400  # SageMaker's own default
WAIT_FACTOR = 2  # spot without --max-wait: as much time for waiting as for running
MOST_VOLUME_GB = 65_536
MOST_RETRIES = 30  # of SageMaker
LOCAL_INSTANCE, LOCAL_IMAGE = "ml.m5.large", "algorun:local"  # of jobs on this machine that name none
PREFIX = re.compile(r"[A-Za-z0-9!_.*'()/-]+")


@dataclass(frozen=True, slots=True)
class _Options:
    """The merged layers."""

    layer: Layer

    def get(self, key: str, convert: Callable[[str, object], T], default: T) -> T:
        """The value of a key, converted; the default if it is absent."""
        given = self.layer.single.get(key)
        return default if given is None else convert(given.where, given.raw)

    def where(self, key: str) -> str:
        """Where a key was given; as a flag if it was not."""
        given = self.layer.single.get(key)
        return given.where if given else f"--{key.replace('_', '-')}"

    def text(self, key: str) -> str:
        """A text, "" if it is absent."""
        return self.get(key, values.text, "")

    def table(self, key: str) -> Mapping[str, Given]:
        """A table by name."""
        return self.layer.tables.get(key, {})


def make(jobfile: JobFile, flags: Layer, words: Sequence[str], *, folder: str, environ: Mapping[str, str]) -> TaskSpec:
    """The task that was asked for. Raises UserError.

    `words`: the program and its arguments, empty if the job file names them. `folder`: the current one. `environ`: for
    `--env NAME`, which takes the caller's value, and for the bucket.
    """
    task = _task(jobfile, flags, words)
    has_program = bool(words) or "shell" in flags.single or "module" in flags.single
    layer = merged([jobfile.defaults, jobfile.layer_of(task, must_exist=not has_program), flags])
    if has_program:  # of the program the flags name all
        kept = {
            key: value
            for key, value in layer.single.items()
            if key not in ("run", "shell", "module") or key in flags.single
        }
        layer = Layer(kept, layer.tables)
    options = _Options(layer)
    program = _program(options, words)
    code, add = layer.single.get("code"), layer.single.get("add")
    own_code = "" if program.shell else jobfile.folder or folder
    project = names.suggested(PurePosixPath(folder).name)  # of a task that names none
    where = options.get("where", _where, Where.AWS)
    docker = options.get("docker", values.flag, False)
    if docker and where is not Where.LOCAL and "docker" in flags.single:  # a job file may say so for all places
        raise UserError("--docker", "is for jobs on this machine", fix="add --where local, or drop --docker")
    docker = docker and where is Where.LOCAL
    is_simulated = where is Where.LOCAL and not docker
    return TaskSpec(
        kind=options.get("kind", _kind, Kind.TRAINING),
        project=names.checked(options.where("project"), options.text("project") or project),
        task=task,
        bucket=options.text("bucket").removeprefix("s3://").rstrip("/") or settings.BUCKET.read(environ),
        prefix=options.get("prefix", _prefix, ""),
        image=options.text("image") or (LOCAL_IMAGE if is_simulated else ""),
        role=options.text("role"),
        kms_key=options.text("kms_key"),
        where=where,
        docker=docker,
        region=options.text("region"),
        profile=options.text("profile"),
        program=program,
        code=code.absolute(values.text(code.where, code.raw)) if code else own_code,
        add=tuple(add.absolute(path) for path in values.words(add.where, add.raw)) if add else (),
        max_code=options.get("max_code", values.size, MAX_CODE),
        launch=_launch(options),
        resources=_resources(options, LOCAL_INSTANCE if where is Where.LOCAL else ""),
        network=Network(
            subnets=options.get("subnets", values.names, ()),
            security_groups=options.get("security_groups", values.names, ()),
            isolation=options.get("network_isolation", values.flag, False),
        ),
        inputs=tuple(input_sources.source(name, given) for name, given in options.table("in").items()),
        outputs=options.get("out", _outputs, ()),
        tensorboard=options.get("tensorboard", values.flag, False),
        metrics={name: values.text(given.where, given.raw) for name, given in options.table("metrics").items()},
        tags={name: values.plain(given.where, given.raw) for name, given in options.table("tags").items()},
        env={name: _variable(name, given, environ) for name, given in options.table("env").items()},
        hyperparameters={name: values.plain(given.where, given.raw) for name, given in options.table("hyperparameters").items()},
    )  # fmt: skip


def _task(jobfile: JobFile, flags: Layer, words: Sequence[str]) -> str:
    """The task's name: --task, that of the program, or the only one of the job file."""
    if given := flags.single.get("task"):
        return names.checked(given.where, values.text(given.where, given.raw))
    if module := flags.single.get("module"):  # before its arguments. A point would make it look like one of a sweep
        return names.suggested(values.text(module.where, module.raw).replace(".", "-"))
    if words:
        return names.suggested(PurePosixPath(words[0]).stem)
    if "shell" in flags.single:
        return "shell"
    if len(jobfile.tasks) == 1:
        return names.checked(f"{jobfile.name} [task]", next(iter(jobfile.tasks)))
    if jobfile.tasks:
        raise UserError(
            "--task",
            "several tasks are possible",
            allowed=", ".join(jobfile.tasks),
            fix=f"--task {next(iter(jobfile.tasks))}",
        )
    raise UserError(
        "PROGRAM", "no program is named", allowed="a script, a module (-m), a bundled entrypoint, or --shell CMD",
        fix=f"algorun submit [OPTIONS] train.py, or a job file {jobfile.name}",
    )  # fmt: skip


def _program(options: _Options, words: Sequence[str]) -> Program:
    run = tuple(words) or options.get("run", values.words, ())
    shell, module = options.text("shell"), options.text("module")
    if shell and (run or module):
        raise UserError(options.where("shell"), "cannot be combined with a program", fix="drop one of the two")
    if shell:
        return Program(shell=shell)
    if module:
        return Program(name=module, args=run, module=True)
    if not run or not run[0]:
        raise UserError(
            options.where("run"), "no program is named", allowed='such as run = ["train.py", "--epochs", "10"]'
        )
    values.words("PROGRAM", list(run))
    return Program(name=run[0], args=run[1:])


def _launch(options: _Options) -> LaunchSpec:
    slots = options.get("slots", lambda where, raw: values.count(where, raw, 4096), None)
    layout = options.get("layout", _layout, None)
    if layout is not None and slots is not None:
        raise UserError(
            "--slots", f"{slots} cannot be combined with -j {layout[0]}x{layout[1]}", fix="drop one of the two"
        )
    return LaunchSpec(
        engine=options.get("engine", lambda where, raw: Engine.of(where, values.text(where, raw)).value, ""),
        slots=layout[1] if layout else slots,
        per_host=options.get("per_host", values.flag, False),
        per_gpu=options.get("per_gpu", values.flag, False),
        share_nothing=options.get("share_nothing", values.flag, False),
        restarts=options.get("restarts", lambda where, raw: values.count(where, raw, MOST_RESTARTS, 0), None),
        hold_s=options.get("hold_on_failure", values.duration_s, None),
        cwd=options.get("cwd", _cwd, ""),
    )


def _resources(options: _Options, default_instance: str) -> ResourceSpec:
    groups = tuple(
        values.group(given.where, name, given.raw) for name, given in options.table("instance_groups").items()
    )
    hosts, layout = options.get("hosts", values.count, None), options.get("layout", _layout, None)
    if layout is not None and hosts is not None and layout[0] != hosts:
        raise UserError(
            options.where("hosts"), f"{hosts} contradicts -j {layout[0]}x{layout[1]}", fix="drop one of the two"
        )
    for key in ("instance", "hosts", "layout"):
        if groups and key in options.layer.single and (key != "layout" or layout is not None):
            raise UserError(options.where(key), "cannot be combined with instance groups", fix="drop one of the two")
    max_run_s = options.get("max_run", values.duration_s, MAX_RUN_S)
    spot = options.get("spot", values.flag, False)
    max_wait_s = options.get("max_wait", values.duration_s, None)
    if max_wait_s is not None and not spot:
        raise UserError(options.where("max_wait"), "only spot instances are waited for", fix="add --spot, or drop it")
    if max_wait_s is not None and max_wait_s < max_run_s:
        raise UserError(
            options.where("max_wait"), f"{max_wait_s} s is less than --max-run ({max_run_s} s), which it includes",
            allowed=f"{max_run_s}s or more", fix=f"--max-wait {max_run_s * WAIT_FACTOR}s",
        )  # fmt: skip
    keep_alive_s = options.get("keep_alive", values.duration_s, None)
    if keep_alive_s is not None and spot:
        raise UserError(options.where("keep_alive"), "spot instances cannot be kept", fix="drop one of the two")
    first, *others = _choices(options, hosts, layout[0] if layout else None, "" if groups else default_instance)
    return ResourceSpec(
        instance=first.instance,
        hosts=first.hosts,
        others=tuple(others),
        groups=groups,
        volume_gb=options.get("volume", lambda where, raw: values.count(where, raw, MOST_VOLUME_GB), None),
        spot=spot,
        max_run_s=max_run_s,
        max_wait_s=(max_wait_s or max_run_s * WAIT_FACTOR) if spot else None,
        retries=options.get("retries", lambda where, raw: values.count(where, raw, MOST_RETRIES), None),
        keep_alive_s=keep_alive_s,
        until_done=options.get("until_done", values.flag, False),
        max_cost=options.get("max_cost", values.amount, None),
        prices=options.get(PRICE, values.prices, {}),
    )


def _choices(options: _Options, hosts: int | None, of_layout: int | None, default: str) -> list[HostChoice]:
    """The kinds of hosts in order of preference. `hosts`: --hosts, for those that have no number of their own."""
    none: tuple[tuple[str, int | None], ...] = ((default, None),)
    found = options.get("instance", values.host_choices, none)
    for instance, own in found:
        of_all = of_layout or (hosts if all(number is not None for _, number in found) else None)
        if own is not None and of_all is not None and own != of_all:
            other = "-j" if of_layout else options.where("hosts")
            raise UserError(
                options.where("instance"), f"{instance}x{own} contradicts {other} {of_all}", fix="drop one of the two"
            )
    return [HostChoice(instance=instance, hosts=own or of_layout or hosts or 1) for instance, own in found]


def _kind(where: str, raw: object) -> Kind:
    return Kind(values.one_of(where, raw, tuple(Kind)))


def _where(where: str, raw: object) -> Where:
    return Where(values.one_of(where, raw, tuple(Where)))


def _prefix(where: str, raw: object) -> str:
    given = values.text(where, raw).strip("/")
    if PREFIX.fullmatch(given) is None or ".." in given.split("/") or "//" in given:
        raise UserError(
            where, f"{raw!r} is not a prefix of keys", allowed="names with / between them, such as teams/vision"
        )
    return given


def _cwd(where: str, raw: object) -> str:
    given = str(PurePosixPath(values.text(where, raw)))
    if given.startswith("/") or ".." in given.split("/"):
        raise UserError(
            where, f"{raw!r} leads out of the code", allowed="a folder of the code, or state for the checkpoint folder"
        )
    return given


def _layout(where: str, raw: object) -> tuple[int, int] | None:
    hosts, slots = hosts_and_slots(str(raw), where)
    return values.count(where, hosts), slots


def _outputs(where: str, raw: object) -> tuple[str, ...]:
    listed = tuple(values.channel_name(where, name) for name in values.names(where, raw))
    if len(set(listed)) < len(listed):
        raise UserError(where, f"{', '.join(listed)}: a name comes twice", fix="drop one of the two")
    return listed


def _variable(name: str, given: Given, environ: Mapping[str, str]) -> str:
    if values.VARIABLE.fullmatch(name) is None:
        raise UserError(given.where, f"{name!r} is not a variable's name", allowed=FORMS["env"])
    if given.raw is not None:
        return values.plain(given.where, given.raw)
    if name not in environ:
        raise UserError(given.where, "is not set in this shell", fix=f"export {name}, or --env {name}=VALUE")
    return environ[name]
