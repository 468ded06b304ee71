"""What is measured of this host and its ranks: figures of the host, times and steps of the ranks, a trace of their steps.

Reports go to the hub and into files of this host; nothing here holds up the ranks' start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from algorun.control.wire.messages import ClockTold
from algorun.host.tools import Tools
from algorun.job.config import JobConfig
from algorun.machine.probe import Machine
from algorun.plan.engines.base import Programs
from algorun.timing.host_figures import HostFigures

from .load_reports import LoadReports
from .rank_times import RankReports, ReportTo
from .step_counter import StepBoard
from .times_file import TimesFile

if TYPE_CHECKING:
    from .host_sampling import HostSampling
    from .step_trace import StepTrace
    from .tracking import Tracking


class Measuring:
    """For all attempts of the job; `begun` is the start of the launcher, by the monotonic clock."""

    def __init__(self, tools: Tools, config: JobConfig, machine: Machine, begun: float) -> None:
        self._tools, self._config, self._machine, self._begun = tools, config, machine, begun
        host = config.resources.current_host
        self._times = TimesFile(config.paths.output_data, host, tools.warn)
        self._trace = self._step_trace()
        self._sampling: HostSampling | None = None  # once ranks run
        self._reports: RankReports | None = None  # of the attempt
        self._loads: LoadReports | None = None
        self._tracking: Tracking | None = None  # once ranks start

    def _step_trace(self) -> StepTrace | None:
        if self._config.trace_steps is None:
            return None
        from .step_trace import StepTrace  # imported late: most jobs trace no steps

        tools = self._tools
        return StepTrace(self._config, self._config.trace_steps, tools.run_dir, tools.send, tools.say)

    # -- the host ----------------------------------------------------------------------------------------------------

    def sample(self, now: float, *, runs: bool) -> list[HostFigures]:
        """The host's figures since the last call, measured from the first call on at which the program `runs`."""
        if self._sampling is not None:
            self._sampling.look(now)
            return self._sampling.take()
        if runs and self._config.figures:
            from .host_sampling import HostSampling, setup

            self._sampling = HostSampling(self._tools, setup(self._config, self._machine, self._begun))
            self._sampling.start(now)
        return []

    def child_ended(self, pid: int, returncode: int, now: float) -> bool:
        """A child of this process has ended; False if it was not one that measures or feeds trackers."""
        if self._tracking is not None and self._tracking.child_ended(pid, returncode):
            return True
        if self._sampling is None or not self._sampling.is_sampler(pid):
            return False
        self._sampling.ended(returncode, now)
        return True

    def finish(self) -> None:
        """The job is over."""
        if self._sampling is not None:
            self._sampling.finish()
        if self._tracking is not None:
            self._tracking.release()

    def track(self, config: JobConfig, programs: Programs, world_size: int) -> None:
        """An attempt is about to start on the host of rank 0: trackers are fed from now on, if the job has any. `config` and `programs`
        as they are after the preparation."""
        if self._tracking is None and config.trackers:
            from .tracking import Tracking  # imported late: most jobs feed no trackers

            self._tracking = Tracking(self._tools, config.trackers)
            self._tracking.begin(config, programs, world_size)

    def result_written(self) -> None:
        """Trackers take what is left from now on."""
        if self._tracking is not None:
            self._tracking.finish()

    def flush(self) -> None:
        """Nothing else runs: waits until the trackers have all."""
        if self._tracking is not None:
            self._tracking.end()

    # -- what the hub says -------------------------------------------------------------------------------------------

    def noticed(self, text: str) -> None:
        """The hub has warned of something: verdicts about slow ranks are kept."""
        from algorun.control.hub.pace import SLOW  # no start needs it

        if text.startswith(SLOW):
            self._times.slow(text)

    def clock_told(self, message: ClockTold, now: float) -> None:
        """The leader's clock, which the trace has asked for."""
        if self._trace is not None:
            self._trace.answered(message, now)

    # -- an attempt --------------------------------------------------------------------------------------------------

    def begin(self, attempt: int, ranks: Sequence[int], board: StepBoard) -> None:
        """Attempt number `attempt`, from 0, is about to start these ranks of this host; `board` has their records."""
        self._reports = RankReports(board, ranks, attempt, ReportTo(self._tools.send, self._times))
        self._loads = LoadReports(board, len(ranks), attempt, self._tools.send)
        if self._trace is not None:
            self._trace.begin(attempt + 1, ranks)

    def started(self, attempt: int, ranks: Sequence[int]) -> None:
        """The ranks of the attempt start."""
        self._times.attempt(attempt + 1, ranks)

    def look(self, now: float, samples: Sequence[HostFigures], *, ranks_run: bool, loaded: bool) -> None:
        """Reports what ranks and host do, if all ranks run; a host is `loaded` with ranks, or with a node of a cluster."""
        every_s = self._config.limits.times_s
        if ranks_run and self._reports is not None:
            self._reports.look(now, every_s)
        if loaded and self._loads is not None:
            self._loads.look(now, every_s, samples)
        if self._trace is not None:
            self._trace.look()

    def ranks_ended(self) -> None:
        """All ranks of this host have ended: the last that the hub hears of their times."""
        if self._reports is not None and self._loads is not None:
            self._reports.tell_last()
            self._loads.tell_last()
        if self._trace is not None:
            self._trace.ask_last()

    def attempt_over(self) -> None:
        """The attempt is over, well or not: writes what is known of its times into this host's file."""
        if self._reports is not None:
            self._reports.keep_last()

    def keep_trace(self, *, final: bool = False) -> None:
        """Writes this host's part of the trace: not before the ranks' end, as it may take a second."""
        if self._trace is not None:
            self._trace.keep(final=final)
