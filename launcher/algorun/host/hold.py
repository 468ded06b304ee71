"""After a failure: a host stays as its ranks left it, so that somebody can look (`algorun shell`, commands/shell.py).

A process that does nothing stands for a rank: it has the rank's environment and folder, from which the shell takes them. So no
variable is written anywhere. The file `held` names the process; it lies outside of what a job leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from algorun.common.durations import duration
from algorun.common.event_loop import STOP_SIGNALS
from algorun.host.output.logs import Console
from algorun.job.config import JobConfig
from algorun.job.paths import DEFAULT_BASE, write_aside
from algorun.job.settings import HELD_COMMAND, PRICE, WHERE
from algorun.plan.plan import Plan

WAITS = "import sys; sys.stdin.buffer.read()"  # ends with this process, whatever ends it
LOOK_S = 0.2  # between two looks for a signal
END_S = 5.0  # from the end of its stdin to that of the process


class Hold:
    """Made before anything handles signals: `nohup` ignores some, and they stay ignored."""

    def __init__(self) -> None:
        self._signals = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._stops: list[int] = []

    def listen(self) -> None:
        """The job is over: from now on a signal that asks for a stop ends the hold, also before it begins."""
        for number in self._signals:
            signal.signal(number, lambda number, _: self._stops.append(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)

    def keep(self, config: JobConfig, plan: Plan, failed_ranks: Sequence[int], console: Console, cause: str) -> None:
        """Keeps this host for ALGORUN_HOLD_ON_FAILURE_S, or until a stop. `cause`: what nobody has said yet."""
        name, host = config.resources.current_host, plan.host(config.resources.current_host)
        rank = next((each for each in host.ranks if each.rank in failed_ranks), host.ranks[0] if host.ranks else None)
        of_rank = plan.environ(host, rank) if rank is not None else plan.starter_environ(host)
        until, began = time.time() + config.hold_s, time.monotonic()
        facts = {"host": name, "rank": None if rank is None else rank.rank, "until": until}
        try:
            with _stand_in({**os.environ, **of_rank, HELD_COMMAND.name: shlex.join(plan.argv)}, plan.cwd) as pid:
                write_aside(config.paths.held, json.dumps({**facts, "pid": pid}))
                console.say(_text(config, until, cause))
                while not self._stops and time.monotonic() < began + config.hold_s:
                    time.sleep(LOOK_S)
        except OSError as error:
            return console.say(f"algorun: warning: {name} is not held: {error}")
        finally:
            with contextlib.suppress(OSError):
                config.paths.held.unlink()
        why = signal.Signals(self._stops[0]).name if self._stops else "the time is over"
        console.say(f"algorun: {name} was held for {duration(time.monotonic() - began)}: {why}")


@contextlib.contextmanager
def _stand_in(environ: dict[str, str], folder: str) -> Iterator[int]:
    """A process with this environment, in this folder; its number. Raises OSError."""
    argv = [sys.executable, "-I", "-S", "-c", WAITS]
    process = subprocess.Popen(
        argv, env=environ, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield process.pid
    finally:
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _text(config: JobConfig, until: float, cause: str) -> str:
    name, hosts, limit_s = config.resources.current_host, len(config.resources.hosts), config.hold_s
    base, ends = str(config.paths.base), "a stop ends it"
    words = ["algorun", "shell"]
    if config.job_name:
        where = _where(config)
        words += [config.job_name, name, *where]
        ends = f"`{shlex.join(['algorun', 'stop', config.job_name, *where])}` ends it"
    elif base != DEFAULT_BASE:
        words.append(base)
    at = time.strftime("%H:%M:%S", time.gmtime(until))
    lines = [f"{name} is held for {duration(limit_s)}, until {at} UTC: look at it with `{shlex.join(words)}`; {ends}"]
    if name == config.resources.hosts[0]:
        lines = [*([cause] if cause else []), *lines]
        hours = hosts * limit_s / 3600
        cost = f", {hours * config.price:.2f} at the price of {PRICE.name}" if config.price else ""
        lines.append(f"so are the other hosts that are left: at most {hours:.2f} host-hours{cost}")
    return "\n".join(f"algorun: {line}" for line in lines)


def _where(config: JobConfig) -> list[str]:
    """The options by which a command finds the job."""
    if where := WHERE.read(config.environ):
        return ["--where", where]
    region = config.environ.get("AWS_REGION") or config.environ.get("AWS_DEFAULT_REGION")
    return ["--region", region] if region else []
