"""Carries out a chain: starts each job as soon as it may start, and watches those that run.

Nothing of it is kept on this machine. A client that is killed leaves jobs that run on; the next one finds them, and the
completed ones, through the tasks' folders and SageMaker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from algorun.common.errors import UserError
from algorun_client.aws.job_state import JobState
from algorun_client.common.codes import ClientCode, Source, kind_of
from algorun_client.common.errors import ApiError
from algorun_client.common.refusals import UNANSWERED, Refusal, Unanswered, explained, never_fits, refusal
from algorun_client.connection import PollTimes
from algorun_client.follow.contact import Contact
from algorun_client.follow.outcome import Ending, judge
from algorun_client.request.model import Kind
from algorun_client.submit.place.place import HowPlaced, Placed
from algorun_client.submit.read.read import SubmitOrder

from . import next_jobs
from .chain import Node
from .chain_plan import ChainPlan
from .chain_view import ChainView
from .next_jobs import Status

POLLS_BETWEEN_TRIES = 12  # a request that is above the quota is made again so often, and when a job of ours has ended
THROTTLED_S = 3600.0  # so long AWS may refuse a call of every round: a user should learn of it on the same day
CALL_S = 0.2  # between two calls for the states of many jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a task has failed."""

    task: str
    code: int
    kind: str
    source: Source
    text: str
    job: str = ""


@dataclass(slots=True)
class _Queue:
    """Jobs on the same instances, while the account's quota allows no more of them."""

    next_try: float
    waiting_since: float  # that long no job of ours has used the quota


class ChainRun:
    """One chain, to its end. `place` makes sure that a task has a job; `describe` asks for its state."""

    def __init__(
        self,
        plan: ChainPlan,
        place: Callable[[SubmitOrder], Placed],
        describe: Callable[[Kind, str], JobState],
        view: ChainView,
        pace: PollTimes,
        queue_s: float,
    ) -> None:
        self._plan, self._place, self._describe, self._view = plan, place, describe, view
        self._pace, self._queue_s = pace, queue_s
        self.status = {node.spec.task: Status.WAITING for node in plan.chain.nodes}
        self.jobs: dict[str, Placed] = {}
        self.faults: list[Fault] = []
        self._phases: dict[str, str] = {}
        self._queues: dict[str, _Queue] = {}
        self._contact = Contact(view, pace.silence_s)
        self._throttled_since: float | None = None

    def run(self) -> None:
        """Returns when nothing runs or waits. Raises UserError if AWS cannot be asked any more; jobs run on then.

        It gives up after `pace.silence_s` without an answer, and after THROTTLED_S in which AWS has throttled each round.
        """
        while not self._round():
            time.sleep(max(self._pace.state_s, CALL_S * len(self.running) if self._pace.stream_s else 0))

    def _round(self) -> bool:
        """Looks at the jobs that run, and starts those that may. True if nothing runs or waits any more."""
        try:
            for node in self._plan.chain.nodes:
                if self.status[node.spec.task] is Status.RUNNING:
                    self._look(node)
            self._start()
            self._contact.complete()
            self._throttled_since = None
        except (ApiError, UserError) as error:  # what is left of the round would wait as long for its answers
            self._refused(error)
        return next_jobs.has_ended(self.status)

    @property
    def running(self) -> list[str]:
        """The jobs that run."""
        return [self.jobs[task].job for task, status in self.status.items() if status is Status.RUNNING]

    def _start(self) -> None:
        """Starts what may start. A task that is done makes others startable at once."""
        while True:
            nodes = [node for node in next_jobs.startable(self._plan.chain, self.status) if self._may_try(node)]
            self._leave_out()
            if not nodes:
                return
            for node in nodes:
                if self._may_try(node):  # the one before may have met the quota
                    self._start_one(node)

    def _start_one(self, node: Node) -> None:
        task = node.spec.task
        try:
            placed = self._place(self._plan.of(node))
        except ApiError as error:
            if refusal(error) is Refusal.QUOTA and not never_fits(error.message):
                self._enqueue(node, error.message)
                return
            if refusal(error) in (*UNANSWERED, Refusal.THROTTLED):
                raise
            self._fail(task, _of_client(task, explained(error)))
            return
        except UserError as error:
            if isinstance(error, Unanswered) or error.code == ClientCode.CONTACT_LOST:
                raise
            self._fail(task, _of_client(task, error))
            return
        self._contact.answered()
        if placed.how is HowPlaced.CREATED:
            self._queues.pop(_instances(node), None)
        self.jobs[task] = placed
        if placed.how is HowPlaced.DONE:
            self._set(task, Status.COMPLETED, placed.job, f"done already by {placed.job}")
        else:
            self._set(task, Status.RUNNING, placed.job)

    def _look(self, node: Node) -> None:
        task = node.spec.task
        placed = self.jobs[task]
        state = self._describe(placed.kind, placed.job)
        self._contact.answered()
        if not state.ended:
            self._show_phase(task, state)
            return
        outcome = judge(state)
        for queue in self._queues.values():  # there may be room now
            queue.next_try = 0.0
        if outcome.kind is Ending.COMPLETED:
            self._set(task, Status.COMPLETED, placed.job)
            return
        fault = Fault(
            task=task,
            code=outcome.code,
            kind=outcome.kind.value,
            source=outcome.source,
            text=outcome.text,
            job=placed.job,
        )
        self._fail(task, fault)

    def _refused(self, error: ApiError | UserError) -> None:
        """A call was refused that says nothing about a task. Returns to try again; raises UserError if that is no use."""
        problem = explained(error) if isinstance(error, ApiError) else error
        if isinstance(error, ApiError) and refusal(error) is Refusal.THROTTLED:  # an answer, and a sign of life
            now = time.monotonic()
            self._throttled_since = self._throttled_since or now
            if now - self._throttled_since > THROTTLED_S:
                raise problem
            self._contact.tell("AWS limits the calls of this account at the moment")
            self._contact.answered()
        elif problem.code == ClientCode.CONTACT_LOST and not self._contact.is_lost:
            self._contact.tell(f"no answer from AWS ({problem.what})")
        else:
            raise problem

    def _may_try(self, node: Node) -> bool:
        """False while the quota is known to allow no more. After the deadline the job fails."""
        queue, now = self._queues.get(_instances(node)), time.monotonic()
        if queue is None:
            return True
        if any(
            self.status[each.spec.task] is Status.RUNNING and _instances(each) == _instances(node)
            for each in self._plan.chain.nodes
        ):
            queue.waiting_since = now
        if now - queue.waiting_since > self._queue_s:
            text = f"the account's quota allowed no {_instances(node)} for {self._queue_s:.0f} s"
            fix = "ask for more under Service Quotas, or wait longer (--queue)"
            error = UserError("quota", text, fix=fix, code=ClientCode.QUOTA)
            self._fail(node.spec.task, _of_client(node.spec.task, error))
            return False
        return now >= queue.next_try

    def _enqueue(self, node: Node, why: str) -> None:
        now = time.monotonic()
        queue = self._queues.setdefault(_instances(node), _Queue(now, now))
        queue.next_try = now + POLLS_BETWEEN_TRIES * self._pace.state_s
        if self.status[node.spec.task] is not Status.QUEUED:
            self._set(node.spec.task, Status.QUEUED, text=why)

    def _leave_out(self) -> None:
        for task, cause in next_jobs.hopeless(self._plan.chain, self.status).items():
            why = "has failed" if self.status[cause] is Status.FAILED else "is left out"
            self._set(task, Status.LEFT_OUT, text=f"{cause} {why}")

    def _fail(self, task: str, fault: Fault) -> None:
        self.faults.append(fault)
        self._set(task, Status.FAILED, fault.job, fault.text)

    def _set(self, task: str, status: Status, job: str = "", text: str = "") -> None:
        self.status[task] = status
        self._view.change(task, status, job, text)

    def _show_phase(self, task: str, state: JobState) -> None:
        phase = state.phases[-1].name if state.phases else state.status
        if self._phases.get(task) != phase:
            self._phases[task] = phase
            self._view.phase(task, state.job, phase)


def _instances(node: Node) -> str:
    """What a quota counts: instances of a type, for jobs of a kind."""
    types = " + ".join(filter(None, node.spec.resources.instances)) or "its instances"
    return f"{types} for {'spot ' if node.spec.resources.spot else ''}{node.spec.kind.value} jobs"


def _of_client(task: str, error: UserError) -> Fault:
    return Fault(task=task, code=error.code, kind=kind_of(error.code), source=Source.CLIENT, text=str(error))
