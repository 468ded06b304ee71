"""`algorun submit --all`, and `submit` of a task with a sweep: several jobs, each as soon as it may start."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from algorun.common.errors import UserError
from algorun_client.aws.api import Target
from algorun_client.aws.job_state import JobState, describe
from algorun_client.common import json_lines
from algorun_client.common.codes import ClientCode, Source
from algorun_client.common.errors import ApiError, Interrupted
from algorun_client.common.json_lines import LastObject
from algorun_client.common.refusals import Refusal, Unanswered, explained, refusal
from algorun_client.connection import Site
from algorun_client.files import scratch
from algorun_client.follow.outcome import Ending
from algorun_client.request.model import Kind, TaskAddress
from algorun_client.submit import dry_run
from algorun_client.submit.assemble import prepare
from algorun_client.submit.assemble.assemble import task_address
from algorun_client.submit.look_up.facts import Facts
from algorun_client.submit.look_up.look_up import look_up
from algorun_client.submit.place.place import Placed, SubmitFlags, say_without_sending
from algorun_client.submit.place.telling import Telling
from algorun_client.submit.read import tune, values
from algorun_client.submit.read.read import SubmitOrder
from algorun_client.submit.read.spec import TaskSpec
from algorun_client.submit.series.host_choice import start
from algorun_client.submit.series.job_series import SeriesRules, ends_of, text_of_next
from algorun_client.submit.submit import connect_for, make_bucket, submit

from . import chain_plan, sagemaker_tuner, sweep_results, tune_study, tuning
from .chain import Chain, Node
from .chain_plan import ChainPlan
from .chain_run import ChainRun
from .chain_view import ChainView, JsonChainView, PlainChainView
from .next_jobs import Status
from .sagemaker_tuner import TunerOptions
from .tuning import Tuning
from .tuning_cost import cost_limit

QUEUE_S = 86_400


def run(options: argparse.Namespace, environ: Mapping[str, str], folder: Path, flags: SubmitFlags) -> int:
    """Returns 0 if all tasks completed, else the code of the first one that failed. Raises UserError before any upload."""
    plan = chain_plan.read_chain(options, environ, folder, options.program if options.all else None)
    for table, asked_tune in plan.chain.tunes.items():
        if asked_tune.by_sagemaker:
            return _by_sagemaker(plan, table, options, environ, flags)
    if options.detach:
        raise UserError(
            "--detach",
            "later jobs have to be created when earlier ones end",
            fix="drop it; Ctrl-C leaves at any time, and the same line goes on",
        )
    queue_s = values.duration_s("--queue", options.queue) if options.queue else QUEUE_S
    for asked_tune in plan.chain.tunes.values():
        tune_study.need_optuna(asked_tune.where)
    connections = _Connections(environ, patient=not options.dry_run)
    if options.dry_run:
        return _print(plan, connections, flags, as_json=options.json)
    if options.create_bucket:
        for asked in plan.asked.values():
            make_bucket(asked.spec, connections.of(asked.spec))
    _check(plan, connections, flags)
    view: ChainView = JsonChainView() if options.json else PlainChainView()
    with scratch.folder("algorun-chain-") as aside:
        plan = chain_plan.snapshot(plan, aside)
        view.note(summary(plan.chain))
        return carry_out(plan, connections, flags, view, queue_s, as_json=options.json)


def _by_sagemaker(
    plan: ChainPlan, table: str, options: argparse.Namespace, environ: Mapping[str, str], flags: SubmitFlags
) -> int:
    """A task whose points SageMaker's tuner chooses. Raises UserError for a chain, which such a task cannot be in."""
    asked = plan.chain.tunes[table]
    if options.all:
        raise UserError(
            f"{asked.where} tuner", "a chain waits for jobs that this command creates, and SageMaker's tuner creates these",
            fix=f"algorun submit --task {table}, or tuner = 'algorun'",
        )  # fmt: skip
    if options.queue:
        raise UserError("--queue", "SageMaker's tuner waits for room by itself", fix="drop it")
    how = TunerOptions(
        detach=options.detach,
        as_json=options.json,
        dry_run=options.dry_run,
        create_bucket=options.create_bucket,
    )
    return sagemaker_tuner.run(plan.asked[table], asked, environ, flags, how)


def summary(chain: Chain) -> str:
    """The tasks in their order, in one line."""
    parts = []
    for table in dict.fromkeys(node.table for node in chain.nodes):
        if table in chain.tunes:
            tuned = chain.tunes[table]
            limit = cost_limit(chain.of_table(table)[0].spec)
            cost = f", for at most {limit:.2f}" if limit is not None else ""
            parts.append(f"{table} (up to {tuned.points} points, {min(tuned.parallel, tuned.points)} at a time{cost})")
            continue
        count = len(chain.of_table(table))
        most = min(chain.parallel.get(table, count), count)
        room = f", {most} at a time" if most < count else ""
        parts.append(f"{table} ({count} point{'s'[: count != 1]}{room})" if table in chain.sweeps else table)
    return f"{'up to ' if chain.tunes else ''}{chain.jobs} job{'s'[: chain.jobs != 1]}: {', '.join(parts)}"


class _Connections:
    """Connections, one for each place that tasks of the chain name. `patient`: False for a dry run."""

    def __init__(self, environ: Mapping[str, str], *, patient: bool) -> None:
        self.environ, self._patient = environ, patient
        self._open: dict[tuple[str, str, bool], Site] = {}

    def of(self, spec: TaskSpec) -> Site:
        """The place of a task."""
        key = (spec.bucket, spec.kms_key, spec.docker)
        if key not in self._open:
            self._open[key] = connect_for(spec, self.environ, patient=self._patient)
        return self._open[key]

    def facts(self, asked: SubmitOrder) -> Facts:
        """What the place knows about a task."""
        return look_up(asked.spec, asked.reading, self.of(asked.spec), self.environ)


def _check(plan: ChainPlan, connections: _Connections, flags: SubmitFlags) -> None:
    """Raises UserError for anything that is known to be wrong, whichever task it is. Writes nothing."""
    for table, asked in plan.asked.items():
        with chain_plan.naming(table):
            facts = connections.facts(asked)
            for spec in chain_plan.specs_of(plan, table):
                prepare.check(asked.of(spec), facts)
            if table in plan.chain.tunes and not flags.runs_anyway:
                place, tuned = connections.of(asked.spec), plan.chain.tunes[table]
                tuning.check_begun(tuned, place.target, task_address(asked.spec, facts))


def _print(plan: ChainPlan, connections: _Connections, flags: SubmitFlags, *, as_json: bool) -> int:
    """The requests of all jobs, as far as they are known before the first one has run."""
    if not as_json:
        print(summary(plan.chain))
    for table, asked in plan.asked.items():
        target = None
        try:
            facts = connections.facts(asked)
            target = connections.of(asked.spec).target
        except Unanswered:
            facts = Facts()
        hashed = prepare.hashed(asked)
        for spec in _known_specs(plan, table, target, facts, flags):
            with prepare.prepared(replace(asked.of(spec), hashed=hashed), facts) as make:
                request = make(None)
                if target is not None:
                    try:
                        make = make.of_choice(start(target, make, flags))
                        request = make(None)
                        say_without_sending(target, make, request, flags, f"{spec.task}: ")
                    except ApiError as error:
                        raise explained(error) from None
            print(dry_run.as_json(request) if as_json else f"\n{dry_run.as_text(request)}")
    return ClientCode.OK


def _known_specs(
    plan: ChainPlan, table: str, target: Target | None, facts: Facts, flags: SubmitFlags
) -> Sequence[TaskSpec]:
    """The jobs of a table that are known before the first one has run: of a tuning the point that would be chosen next."""
    asked = plan.chain.tunes.get(table)
    spec = plan.asked[table].spec
    if asked is None:
        return [node.spec for node in plan.chain.of_table(table)]
    begun = []
    if target is not None and not flags.runs_anyway:
        try:
            begun = tuning.points_so_far(target, task_address(spec, facts))
        except ApiError as error:
            raise explained(error) from None
    listed = [each.parameters for each in begun]
    found = (
        tune_study.rebuilt(asked, begun).choose(lambda point: point in listed) if len(begun) < asked.points else None
    )
    left = asked.points - len(begun) - 1
    text = f"{len(begun)} of {asked.points} points are chosen; the next one is shown"
    print(
        f"algorun: {table}: {text}, and {left} more follow from results that nobody knows yet" if found else
        f"algorun: {table}: all {len(begun)} points are chosen", file=sys.stderr, flush=True,
    )  # fmt: skip
    points = [found] if found else listed
    return [tune.point_spec(spec, asked, point) for point in points]


def carry_out(
    plan: ChainPlan, connections: _Connections, flags: SubmitFlags, view: ChainView, queue_s: float, *, as_json: bool
) -> int:
    """Runs the chain to its end, and shows the tables of its sweeps. Returns the exit code."""
    first = connections.of(next(iter(plan.asked.values())).spec)
    following = first.following()

    lost: set[str] = set()  # tasks whose job exists or not: the answer to Create was lost, and their state is removed
    telling = Telling(as_json)
    after_loss, again = SubmitFlags(force=flags.runs_anyway, lost=True), SubmitFlags(force=flags.runs_anyway)

    going_on: set[str] = set()  # tasks whose state is kept for another job

    def place(asked: SubmitOrder) -> Placed:
        now = after_loss if asked.spec.task in lost else again if asked.spec.task in going_on else flags
        try:
            return submit(asked, connections.of(asked.spec), connections.environ, flags=now, telling=telling)
        except ApiError as error:
            if error.operation.startswith("Create") and refusal(error) is Refusal.UNREACHABLE:
                lost.add(asked.spec.task)
            raise

    def look(kind: Kind, job: str) -> JobState:
        return describe(following.sagemaker, kind, job)

    def open_tuning(node: Node) -> Tuning:
        asked, site = plan.asked[node.table], connections.of(node.spec)
        assert node.tune is not None
        with prepare.prepared(asked, connections.facts(asked)) as make:
            address, made_of = make.address, make(None).fingerprint
        metrics = asked.reading.known[node.table].metrics
        return tuning.open_tuning(
            node.tune, site.target, address, metrics, made_of,
            anew=flags.runs_anyway, grace_s=site.pace.grace_s, note=view.note,
        )  # fmt: skip

    def next_job(node: Node, placed: Placed) -> str:
        why = why_next(connections.of(node.spec), node.spec, placed, view)
        if why:
            going_on.add(node.spec.task)
            lost.discard(node.spec.task)
        return why

    chain_run = ChainRun(plan, place, look, view, first.pace, queue_s, open_tuning, next_job)
    try:
        try:
            chain_run.run()
        finally:
            chain_run.close()
        for table in (*plan.chain.sweeps, *chain_run.tunings):
            show_results(plan, table, connections, view, as_json=as_json)
        return _end(_ended(chain_run), view, as_json=as_json)
    except KeyboardInterrupt as stop:
        text = f"{stop}; {_left(chain_run, flags)}" if isinstance(stop, Interrupted) else _left(chain_run, flags)
        if isinstance(stop, Interrupted) and stop.hanging:
            raise Interrupted(text, hanging=True) from None
        return _end(LastObject(code=ClientCode.DETACHED, kind=Ending.DETACHED, text=text), view, as_json=as_json)
    except BrokenPipeError:
        raise
    except (UserError, OSError) as error:
        is_lost = isinstance(error, Unanswered) or (
            isinstance(error, UserError) and error.code == ClientCode.CONTACT_LOST
        )
        if is_lost and chain_run.running:
            text = f"{error}; {_left(chain_run, flags)}"
            return _end(
                LastObject(code=ClientCode.CONTACT_LOST, kind=Ending.CONTACT_LOST, text=text), view, as_json=as_json
            )
        view.note(_left(chain_run, flags))
        raise


def why_next(connection: Site, spec: TaskSpec, placed: Placed, view: ChainView) -> str:
    """Why another job of the task follows this one, which has ended without completing it; "" if none does."""
    if not spec.resources.is_series:
        return ""
    address = task_address(spec, Facts(bucket=spec.bucket or connection.default_bucket()))
    how = SeriesRules(spec=spec, address=address, as_json=False, again="")
    ended, decision = ends_of(connection.target, placed, how)
    if not decision.goes_on:
        if decision.text:
            view.note(f"{spec.task}: {decision.text}")
        return ""
    return text_of_next(how, ended, decision)


def _left(chain_run: ChainRun, flags: SubmitFlags) -> str:
    """What goes on without this command, and how to come back."""
    runs_on = f"jobs that run on: {', '.join(chain_run.running)}; " if chain_run.running else ""
    line = "the same line without --force and --clean-state" if flags.runs_anyway else "the same line"
    return f"{runs_on}{line} goes on: it joins the jobs that run, and leaves out what is done"


def show_results(plan: ChainPlan, table: str, connections: _Connections, view: ChainView, *, as_json: bool) -> None:
    """The table of a sweep or a tuning. The jobs have ended, so what it cannot read changes no exit code."""
    asked = plan.asked[table]
    place, source, spec = connections.of(asked.spec), asked.reading.known[table], asked.spec
    address = TaskAddress(
        bucket=spec.bucket or place.default_bucket(), project=spec.project, task=table, prefix=spec.prefix
    )
    try:
        swept = sweep_results.swept(place.target, address, plan.chain.sweeps.get(table), plan.chain.tunes.get(table))
        found = sweep_results.read_results(place.target, address, swept, source.metrics, source.best, place.pace)
    except (ApiError, UserError) as error:
        view.note(f"the results of {table} cannot be read: {error}; later: algorun results {table}")
        return
    sweep_results.write(found, as_json=as_json)


def _ended(chain_run: ChainRun) -> LastObject:
    """How a chain ended: as the first of its jobs that failed, in the order of the chain."""
    chain, order = chain_run.chain, [node.spec.task for node in chain_run.chain.nodes]
    status = {task: chain_run.status[task] for task in order}
    of_jobs = [status[node.spec.task] for node in chain.nodes if node.tune is None]
    text = f"{of_jobs.count(Status.COMPLETED)} of {len(of_jobs)} jobs completed"
    if early := of_jobs.count(Status.STOPPED_EARLY):
        text += f", {early} stopped early"
    if bad := sum(status[node.spec.task] is Status.FAILED for node in chain.nodes if node.chosen):
        text += f"; {bad} point{'s'[: bad != 1]} failed"
    if not chain_run.faults:
        return LastObject(kind=Ending.COMPLETED, source=Source.JOB, text=text)
    fault = min(chain_run.faults, key=lambda each: order.index(each.task))
    left_out = [task for task, each in status.items() if each is Status.LEFT_OUT]
    text += f"; {fault.task} failed" + (f"; left out: {', '.join(left_out)}" if left_out else "")
    return LastObject(code=fault.code, kind=fault.kind, source=fault.source, text=text)


def _end(end: LastObject, view: ChainView, *, as_json: bool) -> int:
    if as_json:
        json_lines.write_end(end)
    else:
        view.note(f"{end.text}: exit {end.code}, kind={end.kind} source={end.source}")
    return end.code
