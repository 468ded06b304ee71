"""Where a task keeps what another one reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from algorun.common.errors import UserError
from algorun_client.request.model import Kind, TaskAddress
from algorun_client.submit.read.spec import InputSpec

from .facts import Upstream


def left_by_task(each: InputSpec, upstreams: Mapping[str, Upstream], address: TaskAddress) -> tuple[str, bool]:
    """Where a task keeps what `each` reads, and True if that is known. `address`: of the task that reads.

    Raises UserError if such a task never leaves it.
    """
    source = each.task
    assert source is not None
    upstream = upstreams.get(source.task) if source.what != "state" else None
    task = upstream.task if upstream and upstream.task else source.task
    other = TaskAddress(bucket=address.bucket, project=address.project, task=task, prefix=address.prefix)
    below = f"{source.sub}/" if source.sub else ""
    if source.what == "state":
        return f"{other.state}{below}", True
    if upstream is None:
        return f"{other.output(1)}/{below}", False
    if upstream.kind is Kind.TRAINING:
        return _of_training(each, other, upstream), True
    if source.what == "model":
        raise UserError(
            each.where,
            f"task {source.task!r} is a processing task: it leaves no model",
            fix=f"task:{source.task}/output",
        )
    return f"{other.output(upstream.number)}/{below}", True


def _of_training(each: InputSpec, other: TaskAddress, upstream: Upstream) -> str:
    """SageMaker packs what a training job leaves into one archive."""
    source = each.task
    assert source is not None
    if source.sub:
        raise UserError(
            each.where,
            f"{source.sub!r} lies inside an archive: {source.task!r} is a training task",
            fix=f"{each.name}=task:{source.task}/{source.what},extract",
        )
    return f"{other.output(upstream.number)}/{upstream.job}/output/{source.what}.tar.gz"
