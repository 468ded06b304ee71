"""What a task reads of other tasks: the completed job that feeds it, and values of its metrics. Reads only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from algorun.common.errors import UserError
from algorun_client.aws.api import Target
from algorun_client.aws.job_state import JobState, describe
from algorun_client.common import at_once
from algorun_client.follow import metric_values
from algorun_client.request.model import TaskAddress
from algorun_client.submit.history import claims, done
from algorun_client.submit.history.tune_history import TuneHistory
from algorun_client.submit.read import sweep
from algorun_client.submit.read.source_tasks import Reading, Reference, SourceTask, check_metric, references
from algorun_client.submit.read.spec import TaskSpec

from .facts import Upstream


@dataclass(frozen=True, slots=True)
class _Reader:
    target: Target
    place: TaskAddress  # of the task that reads
    reading: Reading

    def upstream(self, task: str, where: str) -> Upstream:
        """The newest completed execution of a task, or of the best point of a sweep. Raises UserError."""
        source = self.reading.known.get(task, SourceTask())
        if source.is_tuned:
            return self._tuned(task, where, source)
        if not source.points:
            return self._completed(task, where)
        best = source.best
        assert best is not None  # source_tasks.check_reading
        found = at_once.each(lambda point: self._completed(point, where), source.points)
        values = self._last(found, best.metric, source.metrics)
        known = [(value.number, each) for value, each in zip(values, found, strict=True) if value.number is not None]
        if not known:
            raise self._silent(where, best.metric, found[0].job, len(found) - 1)
        # Of equal ones the first.
        return (min if best.lowest else max)(known, key=lambda pair: pair[0])[1]

    def _tuned(self, task: str, where: str, source: SourceTask) -> Upstream:
        """The best completed point of the newest tuning, as far as that has come."""
        history = TuneHistory(self.target.store, replace(self.place, task=task, uploads_of=""))
        begun = history.newest()
        points = history.points(begun.number) if begun else []
        found = [(float(each.end.value), each, each.end) for each in points if each.end and each.end.is_completed]
        if not found:
            raise UserError(
                where,
                f"task {task!r} is tuned, and none of its {len(points)} points has completed",
                fix=f"algorun submit --task {task}",
            )
        assert source.best is not None  # the goal
        _, point, end = (min if source.best.lowest else max)(found, key=lambda each: each[0])  # of equal ones the first
        address = replace(self.place, task=sweep.point_task(task, point.parameters), uploads_of="")
        made = done.fingerprint_of(self.target.store, address, end.execution)
        return Upstream(
            kind=end.kind,
            number=end.execution,
            job=end.job,
            task=address.task,
            fingerprint=made.sha256 if made else "",
        )

    def value(self, reference: Reference, where: str, upstream: Upstream) -> str:
        """The last value of a metric. Raises UserError if it was never printed."""
        metrics = self._metrics(reference.task, upstream)
        check_metric(where, reference.metric, reference.task, metrics)
        (found,) = self._last([upstream], reference.metric, metrics)
        if not found.text:
            raise self._silent(where, reference.metric, upstream.job, 0)
        return found.text

    def _completed(self, task: str, where: str) -> Upstream:
        """Only a completed execution feeds another task."""
        address = replace(self.place, task=task, uploads_of="")
        found = done.newest_completed(self.target, address)
        if found is not None:
            made = done.fingerprint_of(self.target.store, address, found.number)
            fingerprint = made.sha256 if made else ""
            return Upstream(kind=found.kind, number=found.number, job=found.job, task=task, fingerprint=fingerprint)
        states = (claims.state_of(self.target, each) for each in claims.newest_first(self.target.store, address))
        newest = next((f"; its newest job {each.job} is {each.status}" for each in states if each), "")
        known = self.reading.known
        is_unknown = not newest and task not in known
        near = get_close_matches(task, known, n=1) if is_unknown else []
        fix = f"algorun submit --task {known[task].table if task in known else task}"
        if near:
            fix = f"did you mean {near[0]!r}?"
        elif is_unknown:
            fix = "correct the name, or submit that task first"
        elif task == self.place.task:
            fix = f"submit it once without this, or read task:{task}/state, which may be empty"
        raise UserError(
            where,
            f"task {task!r} has no completed job{newest}",
            allowed=f"tasks of the job file: {', '.join(known) or 'none'}" if is_unknown else "",
            fix=fix,
        )

    def _metrics(self, task: str, upstream: Upstream) -> Mapping[str, str]:
        """Those of the job file, else those that SageMaker knows of the job."""
        source = self.reading.known.get(task)
        return source.metrics if source else dict(describe(self.target.sagemaker, upstream.kind, upstream.job).metrics)

    def _last(self, upstreams: Sequence[Upstream], metric: str, metrics: Mapping[str, str]) -> list[metric_values.Last]:
        """The last value of a metric in each execution, as soon as all lines are there."""
        wanted, grace_s = {metric: metrics[metric]}, self.reading.grace_s

        def last(pair: tuple[Upstream, JobState]) -> metric_values.Last:
            upstream, state = pair
            address = replace(self.place, task=upstream.task, uploads_of="")
            return metric_values.read_metrics(self.target, address, upstream.number, state, wanted, grace_s)[metric]

        states = at_once.each(lambda each: describe(self.target.sagemaker, each.kind, each.job), upstreams)
        time.sleep(max(metric_values.unsettled_s(state, grace_s) for state in states))
        return at_once.each(last, zip(upstreams, states, strict=True))

    def _silent(self, where: str, metric: str, job: str, others: int) -> UserError:
        also = f" and {others} other jobs" if others else ""
        return UserError(
            where,
            f"job {job}{also} never printed a number for metric {metric!r}",
            fix=f"look at its lines with `algorun logs {job}`, and correct the metric's regular expression",
        )


def read_upstreams(
    target: Target, spec: TaskSpec, bucket: str, reading: Reading
) -> tuple[dict[str, Upstream], dict[Reference, str]]:
    """What a task reads: the execution that feeds each input, by task, and the values in its words. Raises UserError."""
    place = TaskAddress(bucket=bucket, project=spec.project, task=spec.task, prefix=spec.prefix)
    reader = _Reader(target, place, reading)
    wanted = {each.task.task: each.where for each in spec.inputs if each.task is not None and each.task.what != "state"}
    asked = references(spec)
    for reference, where in asked.items():
        wanted.setdefault(reference.task, where)
    found = {task: reader.upstream(task, where) for task, where in wanted.items() if task not in reading.later}
    values = {
        reference: reader.value(reference, where, found[reference.task])
        for reference, where in asked.items()
        if reference.task in found
    }
    return found, values
