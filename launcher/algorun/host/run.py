"""Executes a job on this host and reports how it ended."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from algorun.common.errors import ExitCode, UserError
from algorun.common.fast_dataclasses import dataclass
from algorun.common.process_limit import cannot_start, is_limit
from algorun.control.failures.failure import Failure
from algorun.control.wire.messages import Verdict
from algorun.job.config import JobConfig
from algorun.machine.probe import Machine
from algorun.outcome import report
from algorun.plan.engines.base import Programs
from algorun.timing.clock import Clock

from .output.logs import PATIENCE_S, Console
from .supervisor import Supervisor

if TYPE_CHECKING:
    from algorun.timing.table import Times

    from .hold import Hold

OLDEST_S = 600.0  # a launcher older than this was not started for the job: its age says nothing
LOGGED = 4096  # characters of a failure in the log, besides what the user's script said


@dataclass(frozen=True, slots=True)
class RunResult:
    """How the job ended here: the verdict that all hosts share, the closing line, and the ranks (0 if hosts never met)."""

    verdict: Verdict
    line: str
    world_size: int = 0


def execute(config: JobConfig, machine: Machine, programs: Programs, *, error: UserError | None = None) -> int:
    """Runs the job and returns the exit code, the same on every host."""
    console, host = Console(), config.resources.current_host
    clock = Clock(_begun_at(time.monotonic()))
    known, failed_ranks = (config, machine, programs), list[int]()
    supervisor: Supervisor | None = None
    hold = _hold(config)
    try:
        supervisor = Supervisor(config, machine, programs, console, clock)
        try:
            verdict, size = supervisor.run(str(error) if error else "")
        finally:
            if hold is not None:
                hold.listen()
            known, failed_ranks = supervisor.known, supervisor.failed_ranks
        if error is not None and (verdict.failure is None or verdict.failure.kind in ("gate", "lost")):
            raise error  # no other host could be told, and it is still the cause here
        result = RunResult(verdict, report.closing_line(verdict, len(config.resources.hosts), size), size)
    except UserError as failed:
        result = _failed_here(config, Failure.of(failed, host))
    except Exception as defect:
        limit = is_limit(defect)
        result = _failed_here(
            config, Failure.of(cannot_start("the launcher"), host) if limit else _defect(host, defect)
        )
    times = _times(config, clock, machine, result.world_size)
    table = _table(times, host, result.verdict) if clock.attempts and host == config.resources.hosts[0] else ""
    waits = config.quiet and result.verdict.failure is not None  # `simulate` shows it below the cause
    facts = report.HostFacts(times.to_json(), _what_ran(*known), failed_ranks, table if waits else "")
    report.write_result(config.paths, result.verdict, result.line, facts)
    if supervisor is not None:
        supervisor.result_written()
    _say_end(console, config, result, "" if waits else table)
    plan = supervisor.plan_to_hold if supervisor is not None else None
    failure = result.verdict.failure
    if hold is not None and plan is not None and failure is not None:
        hold.keep(known[0], plan, failed_ranks, console, failure.headline() if config.quiet else "")
    if supervisor is not None:
        supervisor.flush()
    console.close(None if config.quiet else PATIENCE_S)  # quiet: `simulate` reads on until its own reader has gone
    return int(result.verdict.code) or int(ExitCode.OK)


def _say_end(console: Console, config: JobConfig, result: RunResult, table: str) -> None:
    """The cause first; then where the time went, and the closing line."""
    failure = result.verdict.failure
    if failure is not None and not config.quiet:
        # Only the first line is the launcher's: a message of several lines may look like others of its lines.
        first, *rest = failure.text(LOGGED + len(failure.user_text)).split("\n")
        console.say("\n".join([f"algorun: {first}", *(f"| {line}" for line in rest)]), fd=2)
    if table:
        console.say(table)
    if not config.quiet:
        console.say(result.line)


def _hold(config: JobConfig) -> Hold | None:
    if not config.hold_s:
        return None
    from .hold import Hold  # most jobs hold no host

    return Hold()


def _table(times: Times, host: str, verdict: Verdict) -> str:
    from algorun.timing import table  # only the end needs it

    return table.text(times, host, verdict.data, verdict.slow, verdict.above)


def _what_ran(config: JobConfig, machine: Machine, programs: Programs) -> dict[str, object]:
    from algorun.outcome.what_ran import what_ran  # only the end needs it

    return what_ran(config, machine, programs.python)


def _times(config: JobConfig, clock: Clock, machine: Machine, world_size: int) -> Times:
    """Where this host's time went, from the start of this process until now."""
    from algorun.machine import gpu_peaks  # only the end needs these
    from algorun.timing.table import Times

    return Times(
        clock.seconds(time.monotonic()),
        steps=clock.steps,
        lost_steps=clock.lost_steps,
        hosts=len(config.resources.hosts),
        price=config.price,
        beside=clock.beside,
        activities=clock.activities,
        on_gpu=clock.on_gpu,
        work=clock.work,
        world_size=world_size,
        peak_flops=gpu_peaks.peak_of_all(machine.nvidia, clock.work.ranks),
    )


def _failed_here(config: JobConfig, failure: Failure) -> RunResult:
    """A failure of this host's supervisor. The other hosts see a lost host."""
    from algorun.outcome import redaction

    failure = redaction.failure(failure, config)
    verdict = Verdict("failed", failure.code, failure)
    report.write(config.paths, verdict)
    return RunResult(verdict, report.closing_line(verdict, len(config.resources.hosts), 0))


def _defect(host: str, error: Exception) -> Failure:
    """A fault of the launcher itself, with its traceback."""
    import traceback

    text = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}"
    hint = "this is a fault of algorun, not of your program; please report it with this text"
    return Failure("defect", host, ExitCode.DEFECT, message, None, text, hint)


def _begun_at(now: float) -> float:
    """When the kernel started this process, in seconds of the monotonic clock whose time is `now`; `now` if unknown.

    The kernel counts in hundredths of a second. An exec, such as that of a container's entry script, keeps the moment.
    """
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # from field 3 on, proc_pid_stat(5)
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - age if 0 <= age < OLDEST_S else now
