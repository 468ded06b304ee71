"""A task in one of several regions, in order of preference: one TaskSpec for each. Pure.

What lies in one region alone comes from the table [regions.NAME] of the job file. The image's address in ECR and the
default bucket follow from the region's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from algorun.common.errors import UserError

from . import make_spec, source_tasks, values
from .job_file import JobFile
from .layers import PRICE, Given, Layer, merged
from .spec import SourceKind, TaskSpec, Where

MOST_REGIONS = 5  # each is looked at before anything is created
ECR = re.compile(r"(\d{12}\.dkr\.ecr\.)([a-z0-9-]+)(\.amazonaws\.com(?:\.cn)?/.+)")
OF_ONE_REGION = {"subnets": "--subnets", "security_groups": "--security-groups", "kms_key": "--kms-key"}


def make(jobfile: JobFile, flags: Layer, words: Sequence[str], *, folder: str, environ: Mapping[str, str]) -> TaskSpec:
    """As `make_spec.make`. The task in the first region has those in the others as `elsewhere`. Raises UserError."""
    given = flags.single.get("region") or jobfile.defaults.single.get("region")
    named = names(given) if given is not None else ()
    specs = []
    for region in named:
        layer = _with_table(flags, Given(given.where if given else "", region, folder), jobfile)
        specs.append(make_spec.make(jobfile, layer, words, folder=folder, environ=environ))
    if not specs:
        return make_spec.make(jobfile, flags, words, folder=folder, environ=environ)
    if len(specs) == 1 or specs[0].where is Where.LOCAL:
        return specs[0]
    _check_readings(specs[0])
    first, *others = [_moved(spec, named, jobfile.regions.get(spec.region, Layer())) for spec in specs]
    return replace(first, elsewhere=tuple(others))


def names(given: Given) -> tuple[str, ...]:
    """The regions that an option or key names, the preferred one first. Raises UserError."""
    found = values.names(given.where, given.raw)
    if twice := [name for name in found if found.count(name) > 1]:
        raise UserError(given.where, f"{twice[0]!r} comes twice", fix="drop one of the two")
    if not 1 <= len(found) <= MOST_REGIONS:
        raise UserError(given.where, f"{len(found)} regions", allowed=f"1 to {MOST_REGIONS}", fix="name fewer")
    return found


def only(given: Given) -> str:
    """The region of a command that looks at one. Raises UserError if several are named."""
    found = names(given)
    if len(found) > 1:
        raise UserError(
            given.where,
            f"names {len(found)} regions ({', '.join(found)}), and this command looks at one",
            fix="--region NAME: `submit` has printed it with the job",
        )
    return found[0]


def _with_table(flags: Layer, region: Given, jobfile: JobFile) -> Layer:
    """The flags, and what the job file says about this region alone. Raises UserError if both name the same."""
    table = jobfile.regions.get(str(region.raw), Layer())
    for key, given in table.single.items():
        if key in flags.single:
            raise UserError(flags.single[key].where, f"is given, and {given.where} too", fix="drop one of the two")
    for key, rows in table.tables.items():
        for name in rows:
            if name in flags.tables.get(key, {}):
                where = flags.tables[key][name].where
                raise UserError(where, f"is given, and {rows[name].where} too", fix="drop one of the two")
    return merged([flags, Layer({**singles(jobfile, str(region.raw)), "region": region}, table.tables)])


def singles(jobfile: JobFile, region: str) -> dict[str, Given]:
    """The keys of a region's table. A type without a price there has the one of the file's top. Raises UserError."""
    found = dict(jobfile.regions.get(region, Layer()).single)
    if PRICE in found:
        own, of_all = found[PRICE], jobfile.defaults.single.get(PRICE)
        top = values.prices(of_all.where, of_all.raw) if of_all is not None else {}
        found[PRICE] = Given(own.where, {**top, **values.prices(own.where, own.raw)}, own.folder)
    return found


def _check_readings(spec: TaskSpec) -> None:
    """Raises UserError for what another task left: it lies in one region."""
    for task, where in source_tasks.needs(spec).items():
        raise UserError(
            where, f"what task {task} left lies in one region, and --region names several", fix="--region NAME, one region"
        )  # fmt: skip


def _moved(spec: TaskSpec, regions: Sequence[str], table: Layer) -> TaskSpec:
    """The task in one of several regions. Raises UserError for what it needs there and the job file does not name."""
    is_first, place = spec.region == regions[0], f"[regions.{spec.region}]"
    values_of_one = {
        "subnets": spec.network.subnets,
        "security_groups": spec.network.security_groups,
        "kms_key": spec.kms_key,
    }
    for key, value in values_of_one.items():
        if value and not is_first and key not in table.single:
            raise UserError(
                OF_ONE_REGION[key],
                f"{value if isinstance(value, str) else ','.join(value)} is of one region, and --region names {spec.region} too",
                fix=f"`{key}` in {place} of the job file, or drop {spec.region}",
            )
    for each in spec.inputs:
        if each.file_system is not None and not is_first and each.name not in table.tables.get("in", {}):
            raise UserError(
                each.where,
                f"{each.source} is of one region, and --region names {spec.region} too",
                fix=f"`in.{each.name}` in {place} of the job file, or drop {spec.region}",
            )
        if each.kind is SourceKind.FOLDER and each.name in table.tables.get("in", {}):
            raise UserError(
                each.where, f"{each.source} is a folder of this machine", allowed="s3://.., efs:.., fsx:..",
                fix=f"drop it: a folder is uploaded to the region of the job; or copy it to S3 in {spec.region}",
            )  # fmt: skip
    bucket = spec.bucket if is_first or "bucket" in table.single else ""
    image = spec.image if "image" in table.single else image_in(spec.image, spec.region)
    return replace(spec, bucket=bucket, image=image)


def image_in(image: str, region: str) -> str:
    """The address of an image of ECR in another region; any other address stays as it is."""
    found = ECR.fullmatch(image)
    return f"{found[1]}{region}{found[3]}" if found else image
