"""`algorun submit --all`, and `submit` of a task with a sweep: several jobs, each as soon as it may start."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from algorun.common.errors import UserError
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
from algorun_client.submit.build import prepare
from algorun_client.submit.look_up.facts import Facts
from algorun_client.submit.look_up.look_up import look_up
from algorun_client.submit.place.place import Placed, SubmitFlags, say_without_sending
from algorun_client.submit.place.telling import Telling
from algorun_client.submit.read import values
from algorun_client.submit.read.read import SubmitOrder
from algorun_client.submit.read.spec import TaskSpec
from algorun_client.submit.submit import connect_for, make_bucket, submit

from . import chain_plan, sweep_results
from .chain import Chain
from .chain_plan import ChainPlan
from .chain_run import ChainRun
from .chain_view import ChainView, JsonChainView, PlainChainView
from .next_jobs import Status

QUEUE_S = 86_400


def run(options: argparse.Namespace, environ: Mapping[str, str], folder: Path, flags: SubmitFlags) -> int:
    """Returns 0 if all tasks completed, else the code of the first one that failed. Raises UserError before any upload."""
    if options.detach:
        raise UserError(
            "--detach",
            "later jobs have to be created when earlier ones end",
            fix="drop it; Ctrl-C leaves at any time, and the same line goes on",
        )
    queue_s = values.duration_s("--queue", options.queue) if options.queue else QUEUE_S
    plan = chain_plan.read(options, environ, folder, options.program if options.all else None)
    connections = _Connections(environ, patient=not options.dry_run)
    if options.dry_run:
        return _print(plan, connections, flags, as_json=options.json)
    if options.create_bucket:
        for asked in plan.asked.values():
            make_bucket(asked.spec, connections.of(asked.spec))
    _check(plan, connections)
    view: ChainView = JsonChainView() if options.json else PlainChainView()
    with scratch.folder("algorun-chain-") as aside:
        plan = chain_plan.snapshot(plan, aside)
        view.note(summary(plan.chain))
        return carry_out(plan, connections, flags, view, queue_s, as_json=options.json)


def summary(chain: Chain) -> str:
    """The tasks in their order, in one line."""
    parts = []
    for table in dict.fromkeys(node.table for node in chain.nodes):
        count = len(chain.of_table(table))
        most = min(chain.parallel.get(table, count), count)
        room = f", {most} at a time" if most < count else ""
        parts.append(f"{table} ({count} point{'s'[: count != 1]}{room})" if table in chain.sweeps else table)
    return f"{len(chain.nodes)} job{'s'[: len(chain.nodes) != 1]}: {', '.join(parts)}"


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


def _check(plan: ChainPlan, connections: _Connections) -> None:
    """Raises UserError for anything that is known to be wrong, whichever task it is. Writes nothing."""
    for table, asked in plan.asked.items():
        with chain_plan.naming(table):
            facts = connections.facts(asked)
            for node in plan.chain.of_table(table):
                prepare.check(plan.of(node), facts)


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
        for node in plan.chain.of_table(table):
            with prepare.prepared(replace(plan.of(node), hashed=hashed), facts) as make:
                request = make(None)
                if target is not None:
                    try:
                        say_without_sending(target, make, request, flags, f"{node.spec.task}: ")
                    except ApiError as error:
                        raise explained(error) from None
            print(dry_run.as_json(request) if as_json else f"\n{dry_run.as_text(request)}")
    return ClientCode.OK


def carry_out(
    plan: ChainPlan, connections: _Connections, flags: SubmitFlags, view: ChainView, queue_s: float, *, as_json: bool
) -> int:
    """Runs the chain to its end, and shows the tables of its sweeps. Returns the exit code."""
    first = connections.of(next(iter(plan.asked.values())).spec)
    following = first.following()

    lost: set[str] = set()  # tasks whose job exists or not: the answer to Create was lost, and their state is removed
    telling = Telling(as_json)
    after_loss = SubmitFlags(force=flags.runs_anyway, lost=True)

    def place(asked: SubmitOrder) -> Placed:
        now = after_loss if asked.spec.task in lost else flags
        try:
            return submit(asked, connections.of(asked.spec), connections.environ, flags=now, telling=telling)
        except ApiError as error:
            if error.operation.startswith("Create") and refusal(error) is Refusal.UNREACHABLE:
                lost.add(asked.spec.task)
            raise

    def look(kind: Kind, job: str) -> JobState:
        return describe(following.sagemaker, kind, job)

    chain_run = ChainRun(plan, place, look, view, first.pace, queue_s)
    try:
        chain_run.run()
        for table in plan.chain.sweeps:
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


def _left(chain_run: ChainRun, flags: SubmitFlags) -> str:
    """What goes on without this command, and how to come back."""
    runs_on = f"jobs that run on: {', '.join(chain_run.running)}; " if chain_run.running else ""
    line = "the same line without --force and --clean-state" if flags.runs_anyway else "the same line"
    return f"{runs_on}{line} goes on: it joins the jobs that run, and leaves out what is done"


def show_results(plan: ChainPlan, table: str, connections: _Connections, view: ChainView, *, as_json: bool) -> None:
    """The table of a sweep. The jobs have ended, so what it cannot read changes no exit code."""
    asked = plan.asked[table]
    place, source, spec = connections.of(asked.spec), asked.reading.known[table], asked.spec
    address = TaskAddress(
        bucket=spec.bucket or place.default_bucket(), project=spec.project, task=table, prefix=spec.prefix
    )
    swept = plan.chain.sweeps[table]
    try:
        found = sweep_results.read(place.target, address, swept, source.metrics, source.best, place.pace)
    except (ApiError, UserError) as error:
        view.note(f"the results of {table} cannot be read: {error}; later: algorun results {table}")
        return
    sweep_results.write(found, as_json=as_json)


def _ended(chain_run: ChainRun) -> LastObject:
    """How a chain ended: as the first of its jobs that failed, in the order of the chain."""
    status, order = chain_run.status, list(chain_run.status)
    done = list(status.values()).count(Status.COMPLETED)
    text = f"{done} of {len(status)} jobs completed"
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
