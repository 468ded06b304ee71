"""TaskSpec + facts + files -> Request. Pure: the same input makes the same request, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from algorun.common.errors import UserError
from algorun.common.secret_names import is_secret
from algorun_client.request.codec import identity
from algorun_client.request.model import FORMAT, FORMAT_PER_GPU, Json, Kind, Request, TaskAddress, Upload
from algorun_client.request.names import job_name
from algorun_client.submit.look_up.facts import UNKNOWN_BUCKET, UNKNOWN_ROLE, Facts
from algorun_client.submit.read import program
from algorun_client.submit.read.material import Material, fingerprint
from algorun_client.submit.read.spec import STATE, TaskSpec, Where

from . import channels, fingerprint_parts, global_batch, parts, processing, ranks_per_host, rules, training
from .parts import Execution

LONGEST_KEY = 1024  # bytes of a key in S3
MOST_VARIABLES = 100  # of a job, for SageMaker


def task_address(spec: TaskSpec, facts: Facts) -> TaskAddress:
    """Where the task is kept."""
    return TaskAddress(
        bucket=facts.bucket or spec.bucket or UNKNOWN_BUCKET,
        project=spec.project,
        task=spec.task,
        prefix=spec.prefix,
        uploads_of=spec.sweep_of,
    )


def assemble(spec: TaskSpec, facts: Facts, material: Material, number: int | None) -> Request:
    """The request of execution `number`; None stands for one that could not be looked up.

    Raises UserError for the first thing that the launcher or the rules between options refuse; limits.check knows
    SageMaker's limits.
    """
    rules.check(
        spec, facts, {name: len(files) for name, files in material.inputs.items()}, has_code=material.code is not None
    )
    _known_to_the_image(spec, facts, material)
    address, execution_number = task_address(spec, facts), number or 1
    folders = {name: address.input(name, fingerprint(files)) for name, files in material.inputs.items()}
    sources = channels.sources(spec, facts, address, folders)
    execution = Execution(
        spec=spec,
        facts=facts,
        material=material,
        address=address,
        number=execution_number,
        job=job_name(address, execution_number),
        inputs=sources.inputs,
    )
    create = _create(execution)
    ranks_per_host.check(execution, create)
    on_others = _as_on_the_first(execution, create)
    if on_others is not execution:
        execution, create = on_others, _create(on_others)
    uploads = _uploads(address, material, folders)
    unknown = _unknown(execution, create, sources.assumed, number_is_known=number is not None)
    environment = create["Environment"]
    assert isinstance(environment, dict)
    environment[parts.ID_NAME] = identity(spec.kind, create, uploads)
    _add(environment, parts.COMMIT_NAME, material.commit)
    _add(environment, parts.PRICE_NAME, _price(spec))
    return Request(
        kind=spec.kind,
        address=address,
        number=execution_number,
        job=execution.job,
        create=create,
        uploads=uploads,
        mirrors=tuple(folders.values()),
        unknown=(*unknown, f"Environment.{parts.ID_NAME}") if unknown else (),
        fingerprint=fingerprint_parts.of_execution(execution),
        warnings=(*material.notices, *_warnings(spec)),
    )


def _create(execution: Execution) -> dict[str, Json]:
    return training.create(execution) if execution.spec.kind is Kind.TRAINING else processing.create(execution)


def _as_on_the_first(execution: Execution, create: Mapping[str, Json]) -> Execution:
    """One of several kinds of hosts has to hold the program's layout, and keeps its global batch. Raises UserError."""
    first, spec = execution.spec.resources.first, execution.spec
    if first is None or spec.kind is not Kind.TRAINING or not execution.material.started.is_bundled:
        return execution
    ranks = ranks_per_host.ranks(execution, create, spec.resources.choices[0])
    of_first = ranks_per_host.ranks(execution, create, first)
    global_batch.check_layout(spec, ranks)
    return global_batch.kept(execution, ranks, of_first)


def _add(environment: dict[str, Json], name: str, value: str) -> None:
    """After the request's identity: with another commit or price it is the same request. The user's own value stays."""
    if value and len(environment) < MOST_VARIABLES:
        environment.setdefault(name, value)


def _price(spec: TaskSpec) -> str:
    """The mean price of one host for one hour, for the job's own closing table; "" where it is unknown or there is none."""
    an_hour = rules.rate(spec.resources) if spec.where is Where.AWS else None
    return f"{an_hour / spec.resources.all_hosts:.6g}" if an_hour else ""


def _uploads(address: TaskAddress, material: Material, folders: Mapping[str, str]) -> tuple[Upload, ...]:
    uploads = []
    if code := material.code:
        uploads.append(
            Upload(uri=address.code(code.sha256), size=code.size, sha256=code.sha256, data=code.data, path=code.path)
        )
    for name, files in material.inputs.items():
        folder = folders[name]
        for file in files:
            if len(f"{folder}{file.name}".split("/", 3)[3].encode()) > LONGEST_KEY:
                raise UserError(
                    f"--in {name}",
                    f"{file.name!r} is too long for a key in S3",
                    allowed=f"up to {LONGEST_KEY} bytes",
                    fix="rename it",
                )
            uploads.append(Upload(uri=f"{folder}{file.name}", size=file.size, sha256=file.sha256, path=file.path))
    return tuple(uploads)


def _known_to_the_image(spec: TaskSpec, facts: Facts, material: Material) -> None:
    """Refuses what the image's launcher cannot read, if the image says what it can."""
    if facts.image_format is None:
        return
    asked = (
        ("arguments of this length", program.ARGS_FILE in material.started.added, FORMAT),
        ("inputs with extract", any(each.extract for each in spec.inputs), FORMAT),
        ("--cwd state", spec.launch.cwd == STATE, FORMAT),
        ("processing jobs with code", spec.kind is Kind.PROCESSING and material.code is not None, FORMAT),
        ("--per-gpu", spec.launch.per_gpu, FORMAT_PER_GPU),
        ("--hold-on-failure", spec.launch.hold_s is not None, FORMAT_PER_GPU),
    )
    if newer := [name for name, is_asked, least in asked if is_asked and facts.image_format < least]:
        raise UserError(
            "--image",
            f"{spec.image} is too old for {', '.join(newer)}",
            fix="name an image of this version or a newer one",
        )


def _unknown(
    execution: Execution, create: Mapping[str, Json], assumed: Sequence[str], *, number_is_known: bool
) -> tuple[str, ...]:
    """The paths of the fields that hold a placeholder or an assumed value."""
    marks = [UNKNOWN_ROLE, UNKNOWN_BUCKET, *execution.spec.unfilled]
    if not number_is_known or UNKNOWN_BUCKET in execution.address.bucket:
        marks += [execution.job, f"/{execution.number:04d}/output"]
    found = {path for path, value in _texts(dict(create)) if value in assumed or any(mark in value for mark in marks)}
    if execution.facts.image is None and "@sha256:" not in execution.spec.image:
        is_training = execution.spec.kind is Kind.TRAINING
        found.add("AlgorithmSpecification.TrainingImage" if is_training else "AppSpecification.ImageUri")
    return tuple(sorted(found))


def _texts(value: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text below a value, with its path such as `A.B[0].C`."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")


def _warnings(spec: TaskSpec) -> list[str]:
    found = [
        f"{option} {name}: looks like a secret; whoever may describe the job can read it, so keep it in Secrets Manager"
        for option, table in (("--env", spec.env), ("--hyperparameter", spec.hyperparameters))
        for name in table
        if is_secret(name)
    ]
    if spec.kind is Kind.PROCESSING and spec.metrics:
        found.append("--metric: only training jobs have metrics, so these are left out")
    if spec.kind is Kind.TRAINING and (left_out := parts.metrics(spec)[1]):
        found.append(
            f"--metric: SageMaker takes {rules.MOST_METRICS}; left out of algorun's own: {', '.join(left_out)}"
        )
    return found
