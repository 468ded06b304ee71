"""Carries out a chain: starts each job as soon as it may start, and watches those that run.

Nothing of it is kept on this machine. A client that is killed leaves jobs that run on; the next one finds them, and the
completed ones, through the tasks' folders and SageMaker.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from algorun.common.errors import UserError
from algorun_client.aws.job_state import JobState
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.common.refusals import UNANSWERED, Refusal, Unanswered, explained, never_fits, refusal
from algorun_client.connection import PollTimes
from algorun_client.follow.contact import Contact
from algorun_client.follow.outcome import Ending, Outcome, judge
from algorun_client.request.model import Kind
from algorun_client.submit.history.tune_history import ChosenPoint, PointEnd, PointEnding
from algorun_client.submit.place.place import HowPlaced, Placed
from algorun_client.submit.read.read import SubmitOrder

from . import next_jobs
from .chain import Chain, Node
from .chain_plan import ChainPlan
from .chain_view import ChainView
from .fault import Fault
from .next_jobs import Status
from .tuning import Tuning
from .tuning_cost import TuningCost

POLLS_BETWEEN_TRIES = 12  # a request that is above the quota is made again so often, and when a job of ours has ended
THROTTLED_S = 3600.0  # so long AWS may refuse a call of every round: a user should learn of it on the same day
STOPPING = "stopping early"  # the phase of a point that lags behind
CALL_S = 0.2  # between two calls for the states of many jobs
STATUS_OF = {
    PointEnding.COMPLETED: Status.COMPLETED,
    PointEnding.FAILED: Status.FAILED,
    PointEnding.STOPPED_EARLY: Status.STOPPED_EARLY,
}


@dataclass(slots=True)
class _Queue:
    """Jobs on the same instances, while the account's quota allows no more of them."""

    next_try: float
    waiting_since: float  # that long no job of ours has used the quota


class ChainRun:
    """One chain, to its end. `place` makes sure that a task has a job; `describe` asks for its state.

    `open_tuning` begins the tuning of a node, or goes on with it: its points become nodes of the chain as they are chosen.
    `next_job` says why another job of a task is to follow one that has not completed; "" if none is.
    """

    def __init__(
        self,
        plan: ChainPlan,
        place: Callable[[SubmitOrder], Placed],
        describe: Callable[[Kind, str], JobState],
        view: ChainView,
        pace: PollTimes,
        queue_s: float,
        open_tuning: Callable[[Node], Tuning] | None = None,
        next_job: Callable[[Node, Placed], str] = lambda node, placed: "",
    ) -> None:
        self._plan, self._place, self._describe, self._view = plan, place, describe, view
        self._open_tuning, self._next_job = open_tuning, next_job
        self.chain: Chain = plan.chain  # it grows
        self.tunings: dict[str, Tuning] = {}  # by table
        self._costs: dict[str, TuningCost | None] = {}  # by table
        self._pace, self._queue_s = pace, queue_s
        self.status = {node.spec.task: Status.WAITING for node in plan.chain.nodes}
        self.jobs: dict[str, Placed] = {}
        self.faults: list[Fault] = []
        self._point_faults: dict[str, Fault] = {}  # of points of tunings, which go on
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
            for node in self.chain.nodes:
                if self.status[node.spec.task] is Status.RUNNING and node.tune is None:
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
        running = (task for task, status in self.status.items() if status is Status.RUNNING)
        return [self.jobs[task].job for task in running if task in self.jobs]

    def close(self) -> None:
        """Ends what the tunings have begun on this machine."""
        for tuning in self.tunings.values():
            tuning.close()

    def _start(self) -> None:
        """Starts what may start. A task that is done makes others startable at once."""
        while True:
            self._tune()
            self._leave_out()
            nodes = [node for node in next_jobs.startable(self.chain, self.status) if self._may_try(node)]
            if not nodes:
                return
            for node in nodes:
                if self._may_try(node) and self._is_wanted(node):  # the one before may have met the quota, or an error
                    self._start_one(node)

    def _start_one(self, node: Node) -> None:
        task = node.spec.task
        try:
            if node.tune is not None:
                self._begin_tuning(node)
                return
            placed = (self._job_of(node) if node.chosen else None) or self._place(self._plan.of(node))
        except ApiError as error:
            if refusal(error) is Refusal.QUOTA and not never_fits(error.message):
                self._enqueue(node, error.message)
                return
            if refusal(error) in (*UNANSWERED, Refusal.THROTTLED):
                raise
            self._fail(node, Fault.of_client(task, explained(error)))
            return
        except UserError as error:
            if isinstance(error, Unanswered) or error.code == ClientCode.CONTACT_LOST:
                raise
            self._fail(node, Fault.of_client(task, error))
            return
        self._contact.answered()
        if placed.how is HowPlaced.CREATED:
            self._queues.pop(_instances(node), None)
        self.jobs[task] = placed
        if placed.how is HowPlaced.DONE and not node.chosen:
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
            if node.chosen and self.tunings[node.table].watch(self._point(node), placed, state):
                self._say_stop(task, placed.job)
            return
        outcome = judge(state)
        for queue in self._queues.values():  # there may be room now
            queue.next_try = 0.0
        if node.chosen:
            self._end_point(node, state, outcome)
            return
        if outcome.kind is Ending.COMPLETED:
            self._set(task, Status.COMPLETED, placed.job)
            return
        if why := self._next_job(node, placed):
            self._set(task, Status.WAITING, placed.job, why)
            return
        self._fail(node, Fault.of_job(task, placed.job, outcome))

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
            self.status[each.spec.task] is Status.RUNNING and each.tune is None and _instances(each) == _instances(node)
            for each in self.chain.nodes
        ):
            queue.waiting_since = now
        if now - queue.waiting_since > self._queue_s:
            text = f"the account's quota allowed no {_instances(node)} for {self._queue_s:.0f} s"
            fix = "ask for more under Service Quotas, or wait longer (--queue)"
            error = UserError("quota", text, fix=fix, code=ClientCode.QUOTA)
            self._fail(node, Fault.of_client(node.spec.task, error))
            return False
        return now >= queue.next_try

    def _enqueue(self, node: Node, why: str) -> None:
        now = time.monotonic()
        queue = self._queues.setdefault(_instances(node), _Queue(now, now))
        queue.next_try = now + POLLS_BETWEEN_TRIES * self._pace.state_s
        if self.status[node.spec.task] is not Status.QUEUED:
            self._set(node.spec.task, Status.QUEUED, text=why)

    def _leave_out(self) -> None:
        for task, cause in next_jobs.hopeless(self.chain, self.status).items():
            why = "has failed" if self.status[cause] is Status.FAILED else "is left out"
            self._set(task, Status.LEFT_OUT, text=f"{cause} {why}")

    def _fail(self, node: Node, fault: Fault) -> None:
        """A task has failed. A point that cannot be placed ends its tuning: the next one would meet the same."""
        if node.chosen:
            self._set(node.spec.task, Status.FAILED, text=f"it ends the tuning of {node.table}")
            if self.status[node.table] is not Status.RUNNING:  # another point has ended it already
                return
            fault = replace(fault, task=node.table)
        self.faults.append(fault)
        self._set(fault.task, Status.FAILED, fault.job, fault.text)

    def _is_wanted(self, node: Node) -> bool:
        """False for a point whose tuning has failed."""
        return not node.chosen or self.status[node.table] is Status.RUNNING

    def _begin_tuning(self, node: Node) -> None:
        """Its points that were chosen before come into the chain: their jobs have ended, run, or are still to be placed."""
        assert self._open_tuning is not None
        tuning = self._open_tuning(node)
        self.tunings[node.table] = tuning
        self._costs[node.table] = TuningCost.of(node.spec, self._describe)
        text = f"goes on with {len(tuning.points)} points, {len(tuning.ends)} of them ended" if tuning.points else ""
        self._set(node.spec.task, Status.RUNNING, text=text)
        if text:
            self._view.note(f"{node.spec.task}: {text}")
        for point in tuning.points:
            self._add(node.table, point)

    def _add(self, table: str, point: ChosenPoint) -> None:
        self.chain, node = self.chain.with_point(table, point.number, point.parameters)
        task, end = node.spec.task, point.end
        self.status[task] = Status.WAITING
        if end is not None:
            self.jobs[task] = Placed(end.kind, end.job, end.execution, HowPlaced.JOINED)
            # One that was to be stopped early may run on: the client was killed before it could ask.
            is_sure = end.ending is not PointEnding.STOPPED_EARLY
            self.status[task] = STATUS_OF[end.ending] if is_sure else Status.RUNNING

    def _tune(self) -> None:
        """Chooses points where a tuning has room for them, and ends tunings whose points have all ended."""
        for table, tuning in self.tunings.items():
            if self.status[table] is not Status.RUNNING:
                continue
            try:
                self._choose(table, tuning)
            except UserError as error:
                if isinstance(error, Unanswered) or error.code == ClientCode.CONTACT_LOST:
                    raise
                self._fail(self.chain.of_table(table)[0], Fault.of_client(table, error))
                continue
            self._settle(table, tuning)

    def _choose(self, table: str, tuning: Tuning) -> None:
        """One point at a time: each choice knows the others."""
        while not tuning.has_failed_at_once:
            known, open_ones = len(tuning.points), self._open(table)
            if tuning.is_exhausted or len(open_ones) >= self.chain.parallel[table] or not self._affords(table):
                return
            if any(
                self.status[node.spec.task] is Status.QUEUED for node in open_ones
            ):  # another one would wait as well
                return
            for point in tuning.sync() or tuning.choose(self.status):
                self._add(table, point)
            if len(tuning.points) == known:
                return

    def _settle(self, table: str, tuning: Tuning) -> None:
        """Ends a tuning if nothing of it runs or waits."""
        statuses = [self.status[node.spec.task] for node in self.chain.jobs_of(table)]
        chosen_all = tuning.is_exhausted or not self._affords(table)
        have_ended = chosen_all and all(each in STATUS_OF.values() for each in statuses)
        if tuning.has_failed_at_once or (have_ended and Status.COMPLETED not in statuses):
            self._fail(self.chain.of_table(table)[0], self._nothing_good(table, tuning))
        elif have_ended:
            self._set(table, Status.COMPLETED, text=f"{tuning.counted}{self._not_tried(table, tuning)}")

    def _open(self, table: str) -> list[Node]:
        """The jobs of a table that run or are to run."""
        return [
            node
            for node in self.chain.jobs_of(table)
            if self.status[node.spec.task] in (*next_jobs.OPEN, Status.RUNNING)
        ]

    def _ended(self, table: str) -> list[Placed]:
        tasks = [node.spec.task for node in self.chain.jobs_of(table)]
        return [self.jobs[task] for task in tasks if self.status[task] in STATUS_OF.values() and task in self.jobs]

    def _affords(self, table: str) -> bool:
        """False while another point could bring the tuning above --max-cost: jobs that run may cost less than they can."""
        costs = self._costs[table]
        return costs is None or costs.allows(self._ended(table), len(self._open(table)))

    def _not_tried(self, table: str, tuning: Tuning) -> str:
        """How many points the limit of the cost has left out, and why; "" for none."""
        costs, left = self._costs[table], tuning.asked.points - len(tuning.points)
        if costs is None or not left:
            return ""
        return f"; {left} of {tuning.asked.points} points were not tried: {costs.told(self._ended(table))}"

    def _nothing_good(self, table: str, tuning: Tuning) -> Fault:
        """Why a tuning has failed: as the job of its first point that failed."""
        task, end = next((each for each in tuning.ends if each[1].ending is PointEnding.FAILED), ("", None))
        said = self._point_faults.get(task)
        if end is not None and said is None:  # an earlier client has seen its end
            with contextlib.suppress(NotFound):
                said = Fault.of_job(table, end.job, judge(self._describe(end.kind, end.job)))
        count = len(tuning.ends)
        if said is None:
            error = UserError(tuning.asked.where, f"none of its {count} points has completed", fix="--force tunes anew")
            return Fault.of_client(table, error)
        text = (
            f"its first {count} points have all failed, and no other is chosen. Correct the program and run the same line again, or "
            f"the space and add --force. The first of them, {said.job}: {said.text}"
        )
        return replace(said, task=table, text=text)

    def _job_of(self, node: Node) -> Placed | None:
        return self.tunings[node.table].job_of(self._point(node))

    def _point(self, node: Node) -> ChosenPoint:
        return self.tunings[node.table].points[node.chosen - 1]

    def _say_stop(self, task: str, job: str) -> None:
        if self._phases.get(task) != STOPPING:
            self._phases[task] = STOPPING
            self._view.phase(task, job, STOPPING)

    def _end_point(self, node: Node, state: JobState, outcome: Outcome) -> None:
        """The job of a point has ended."""
        task, placed, tuning = node.spec.task, self.jobs[node.spec.task], self.tunings[node.table]
        try:
            end = tuning.end_of(self._point(node), placed, state)
        except UserError as error:
            if isinstance(error, Unanswered) or error.code == ClientCode.CONTACT_LOST:
                raise
            self._fail(node, replace(Fault.of_client(task, error), job=placed.job))
            return
        if end is None:  # its last lines may still come
            return
        if end.ending is PointEnding.FAILED:
            self._point_faults[task] = Fault.of_job(task, placed.job, outcome)
        self._set(task, STATUS_OF[end.ending], placed.job, _of_end(end, outcome, tuning.asked.goal.metric))

    def _set(self, task: str, status: Status, job: str = "", text: str = "") -> None:
        self.status[task] = status
        self._view.change(task, status, job, text)

    def _show_phase(self, task: str, state: JobState) -> None:
        phase = state.phases[-1].name if state.phases else state.status
        if self._phases.get(task) == STOPPING:
            return
        if self._phases.get(task) != phase:
            self._phases[task] = phase
            self._view.phase(task, state.job, phase)


def _instances(node: Node) -> str:
    """What a quota counts: instances of a type, for jobs of a kind."""
    types = " + ".join(filter(None, node.spec.resources.instances)) or "its instances"
    return f"{types} for {'spot ' if node.spec.resources.spot else ''}{node.spec.kind.value} jobs"


def _of_end(end: PointEnd, outcome: Outcome, metric: str) -> str:
    """What a point's end says to people."""
    return outcome.text if end.ending is PointEnding.FAILED else f"{metric} {end.value}"
