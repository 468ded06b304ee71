"""Follows one job to its end: asks for its state and its lines, and hands both to a view."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from algorun_client.aws.api import Target
from algorun_client.aws.job_state import JobState, describe
from algorun_client.common.codes import ClientCode, Source
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.common.refusals import Refusal, refusal
from algorun_client.connection import PollTimes
from algorun_client.request.model import Kind

from .contact import Contact
from .held_hosts import failed_without_hold
from .log_reader import LogReader
from .outcome import DETACHED, Ending, Outcome, judge
from .view import View

OF_LINES = ("DescribeLogStreams", "GetLogEvents")  # the job's state can be followed without them
# After this time no line of an ended job is still on its way. AWS's clock may differ from this machine's by five minutes:
# it refuses the calls of a machine that is further off.
SETTLED_S = 900.0
GONE = (Refusal.EXPIRED, Refusal.CREDENTIALS, Refusal.DENIED)  # no later call can succeed


class Follower:
    """One job, from wherever it is now to its end.

    Calls that are throttled or not answered are made again in the next round; nothing is lost by that. Credentials that
    are no longer valid, or `silence_s` without an answer, end following; the job runs on.
    """

    def __init__(self, target: Target, kind: Kind, job: str, view: View, pace: PollTimes) -> None:
        self._target, self._kind, self._job, self._view, self._pace = target, kind, job, view, pace
        self._reader = LogReader(target.logs, kind, job)
        self._state: JobState | None = None
        self._logs_denied = False
        self._contact = Contact(view, pace.silence_s)
        self._all_there = False  # all lines were there before the first was read: none can come late
        self._due: dict[str, float] = {}
        self._rest_refused: float | None = None  # since when the last lines are asked for in vain

    def run(self) -> Outcome:
        """Returns when the job has ended and all its lines are shown, or when contact is lost."""
        ended: float | None = None
        while True:
            try:
                self._round()
            except ApiError as error:
                lost = self._refused(error)
                self._view.lines(self._reader.drain())  # of the streams that did answer
                if lost is not None:
                    if self._state is not None and self._state.ended:  # how it ended is known
                        self._view.note(f"the job's last lines may be missing: {lost.text}")
                        return self._judged(self._state)
                    return lost
            state, now = self._state, time.monotonic()
            if state is not None and state.ended:
                ended = ended or now
                if (now - ended >= self._pace.grace_s or _is_settled(state)) and self._rest():
                    return self._judged(state)
            calls_s = self._pace.stream_s * self._reader.streams
            time.sleep(max(self._pace.poll_s if self._reader.is_up_to_date else self._pace.poll_s / 10, calls_s))

    def _judged(self, state: JobState) -> Outcome:
        """The outcome. If hosts were to be held and were not, a note says why."""
        if why := failed_without_hold(state):
            self._view.note(why)
        return judge(state)

    def _round(self) -> None:
        if self._is_due("state") and not (self._state and self._state.ended):
            is_first = self._state is None
            self._state = describe(self._target.sagemaker, self._kind, self._job)
            self._all_there = is_first and _is_settled(self._state)
            self._contact.answered()
            self._done("state", self._pace.state_s)
            self._view.state(self._state)
        if not self._logs_denied:
            if self._is_due("streams"):
                self._reader.discover()
                self._done("streams", self._pace.streams_s)
            self._view.lines(self._reader.poll())
            if self._is_due("sweep"):
                self._view.lines(self._reader.sweep(all_streams=False))
                self._done("sweep", self._pace.sweep_s)
        self._contact.complete()

    def _rest(self) -> bool:
        """After the end: what no round has read yet. False if there may be more, or a call was refused, but not for ever."""
        if self._logs_denied:
            return True
        try:
            self._reader.discover()
            self._view.lines(self._reader.poll())
            if not self._reader.at_end:
                self._rest_refused = None
                return False
            if not self._all_there:
                self._view.lines(self._reader.sweep(all_streams=True))
        except ApiError as error:
            self._view.lines(self._reader.drain())
            now = time.monotonic()
            self._rest_refused = self._rest_refused or now
            in_vain = now - self._rest_refused > self._pace.silence_s  # throttling is an answer: contact is not lost
            if refusal(error) in GONE or in_vain or self._contact.is_lost:
                self._view.note(f"the job's last lines may be missing: {error}")
                return True
            return False
        return True

    def _is_due(self, what: str) -> bool:
        return time.monotonic() >= self._due.get(what, 0.0)

    def _done(self, what: str, every: float) -> None:
        """Only after an answer: what was refused is due at once."""
        self._due[what] = time.monotonic() + every

    def _refused(self, error: ApiError) -> Outcome | None:
        """What a refused call means: None to go on."""
        reason = refusal(error)
        unreadable = reason is Refusal.INVALID and self._contact.has_lost_lines
        if error.operation in OF_LINES and (reason is Refusal.DENIED or unreadable):
            self._logs_denied = True
            self._view.note(f"the lines cannot be read: {error.message}; the job's state can")
            return None
        if reason in GONE or isinstance(error, NotFound):
            return _lost(str(error))
        if reason is Refusal.THROTTLED:  # an answer, and a sign of life
            self._contact.tell("AWS limits the calls of this account at the moment")
            self._contact.answered()
            return None
        if self._contact.is_lost:
            return _lost(f"no answer for {self._contact.longest_s:.0f} s: {error}")
        self._contact.tell(f"no answer from AWS ({error.code})")
        return None


def follow(target: Target, kind: Kind, job: str, view: View, pace: PollTimes) -> Outcome:
    """Follows a job and returns how that ended. Ctrl-C detaches: the job runs on."""
    try:
        return Follower(target, kind, job, view, pace).run()
    except KeyboardInterrupt:
        return DETACHED


def _is_settled(state: JobState) -> bool:
    """True for a job that ended long ago."""
    ended = state.times.ended
    return ended is not None and (datetime.now(UTC) - ended).total_seconds() > SETTLED_S


def _lost(why: str) -> Outcome:
    return Outcome(ClientCode.CONTACT_LOST, Ending.CONTACT_LOST, Source.CLIENT, why)
