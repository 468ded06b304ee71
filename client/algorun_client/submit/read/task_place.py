"""Where a task is kept: from the options, its table in the job file, the file's top, and the environment, in this order."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from algorun_client.common import settings
from algorun_client.request import names
from algorun_client.request.model import TaskAddress

from . import job_file, regions, values
from .job_file import JobFile
from .layers import PRICE, Given, merged
from .spec import Where
from .sweep import TaskSweep
from .tune import TaskTune


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlace:
    """ "" or None: not given."""

    where: str | None
    profile: str
    region: str
    project: str
    bucket: str
    prefix: str
    prices: Mapping[str, float] = field(default_factory=dict)  # of one host for one hour, by instance type
    sweeps: Mapping[str, TaskSweep] = field(default_factory=dict)  # of the job file, by the task that is swept
    tunes: Mapping[str, TaskTune] = field(default_factory=dict)  # of the job file, by the task that is tuned


def read_place(options: argparse.Namespace, environ: Mapping[str, str], folder: Path) -> TaskPlace:
    """Raises UserError for a job file that cannot be read, and for several regions."""
    file = job_file.read_job_file(options.file, folder)
    given = _given(options, file)
    asked = _region(options, given, folder)
    is_local = (options.where or (given["where"].raw if "where" in given else "")) == Where.LOCAL
    region = "" if asked is None else regions.names(asked)[0] if is_local else regions.only(asked)
    listed = regions.names(given["region"]) if "region" in given else ()
    place = _place(options, file, environ, folder, region)
    is_other = region in listed[1:] and not options.bucket and "bucket" not in regions.singles(file, region)
    return replace(place, bucket="") if is_other else place


def read_places(options: argparse.Namespace, environ: Mapping[str, str], folder: Path) -> list[TaskPlace]:
    """The place in each region that --region or the job file names, the preferred one first; "" if none is named. Raises UserError."""
    file = job_file.read_job_file(options.file, folder)
    asked = _region(options, _given(options, file), folder)
    if asked is None:
        return [_place(options, file, environ, folder, "")]
    first, *others = [_place(options, file, environ, folder, region) for region in regions.names(asked)]
    # The bucket that stands for no region is that of the preferred one, as for `submit`.
    return [
        first,
        *(each if "bucket" in regions.singles(file, each.region) else replace(each, bucket="") for each in others),
    ]


def _given(options: argparse.Namespace, file: JobFile) -> dict[str, Given]:
    return dict(merged([file.defaults, file.layer_of(getattr(options, "job", ""), must_exist=False)]).single)


def _region(options: argparse.Namespace, given: Mapping[str, Given], folder: Path) -> Given | None:
    """What names the region, or several."""
    return Given("--region", options.region, str(folder)) if options.region else given.get("region")


def _place(
    options: argparse.Namespace, file: JobFile, environ: Mapping[str, str], folder: Path, region: str
) -> TaskPlace:
    given = {**_given(options, file), **regions.singles(file, region)}

    def value(key: str) -> str:
        own = getattr(options, key)
        if own or key not in given:
            return str(own or "")
        return values.text(given[key].where, given[key].raw)

    where, project = value("where"), value("project") or names.suggested(folder.resolve().name)
    return TaskPlace(
        where=values.one_of(given["where"].where if "where" in given else "--where", where, tuple(Where))
        if where
        else None,
        profile=value("profile"),
        region=region,
        project=project,
        bucket=value("bucket").removeprefix("s3://").rstrip("/") or settings.BUCKET.read(environ),
        prefix=value("prefix").strip("/"),
        prices=values.prices(given[PRICE].where, given[PRICE].raw) if PRICE in given else {},
        sweeps=file.sweeps,
        tunes=file.tunes,
    )


def sweep_of(known: TaskPlace, text: str) -> TaskSweep | None:
    """The sweep of the job file that `text` names: TASK or PROJECT/TASK; None if it is none."""
    project, _, task = text.rpartition("/")
    return known.sweeps.get(task) if project in ("", known.project) else None


def tune_of(known: TaskPlace, text: str) -> TaskTune | None:
    """The same of a tune table."""
    project, _, task = text.rpartition("/")
    return known.tunes.get(task) if project in ("", known.project) else None


def task_address(known: TaskPlace, text: str, bucket: str) -> TaskAddress:
    """Where the task lies that `text` names: TASK or PROJECT/TASK. `bucket`: the default one.

    Raises UserError for what is no name, such as `../x`.
    """
    project, _, task = text.rpartition("/")
    return TaskAddress(
        bucket=known.bucket or bucket,
        project=names.checked("TASK", project or known.project),
        task=names.checked("TASK", task),
        prefix=known.prefix,
    )
