"""The process that feeds experiment trackers, on the first host: `algorun.inside.trackers`, in the job's own environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.secret_names import is_secret
from algorun.common.secret_values import hidden
from algorun.host.tools import Tools
from algorun.job.config import JobConfig
from algorun.plan.engines.base import Programs

# For what trackers have to send when all else is done. Together with SLACK_S it is less than a platform waits for a host after the
# others have left, 15 s at home, and than what a stop leaves of SageMaker's 120 s.
FLUSH_S = 10.0
SLACK_S = 2.0  # the process ends itself; after so much more it is killed
POLL_S = 0.02
# Of the job's hyperparameters, and characters of one: a word of a command line has 128 KiB.
MOST_FACTS, LONGEST_FACT = 100, 250


class Tracking:
    """From the first attempt on until all else of the job is done. Whatever happens to the process, the job goes on."""

    def __init__(self, tools: Tools, trackers: Sequence[str]) -> None:
        self._tools, self._trackers = tools, trackers
        self._pid, self._feed = 0, -1

    def begin(self, config: JobConfig, programs: Programs, world_size: int) -> None:
        """Ranks are about to start for the first time. The job's own environment is known by now, and has the trackers' packages."""
        setup = json.dumps(setup_of(config, world_size))
        argv = [programs.python, "-u", "-P", "-m", "algorun.inside.trackers", setup]  # -P: not the current folder first
        fed, feed = os.pipe()
        try:
            self._tools.logs.mkdir(parents=True, exist_ok=True)
            self._pid = self._tools.owner.start(argv, os.environ, "/", 1, 2, what="trackers", stdin=fed, aside=True)
            self._feed = feed
        except (UserError, OSError) as error:
            os.close(feed)
            self._lost(f"they cannot start: {error}")
        finally:
            os.close(fed)

    def child_ended(self, pid: int, returncode: int) -> bool:
        """A child of this process has ended; False if it was not the trackers'."""
        if not self._pid or pid != self._pid:
            return False
        self._pid = 0
        os.close(self._feed)
        self._lost(f"their process ended with {returncode}; its words are in logs/trackers.log")
        return True

    def release(self) -> None:
        """The job is over: from now on nobody ends the process but `end`."""
        if self._pid:
            self._tools.owner.release(self._pid)

    def finish(self) -> None:
        """The result is written: the process reads it, sends what is left and ends, beside whatever this host still does."""
        if self._pid:
            os.close(self._feed)

    def end(self) -> None:
        """Waits until the trackers have all, at most FLUSH_S. Call it last, after `finish`."""
        if not self._pid:
            return
        deadline = time.monotonic() + FLUSH_S + SLACK_S
        with contextlib.suppress(ChildProcessError):
            while not os.waitpid(self._pid, os.WNOHANG)[0]:
                if time.monotonic() > deadline:
                    os.killpg(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
                    self._lost(f"they have not ended within {FLUSH_S + SLACK_S:g} s")
                    break
                time.sleep(POLL_S)
        self._pid = 0

    def _lost(self, why: str) -> None:
        self._tools.warn(f"{', '.join(self._trackers)}: trackers get no more of this job, which goes on: {why}")


def setup_of(config: JobConfig, world_size: int) -> dict[str, object]:
    """What inside/trackers.py has to know, as JSON. Secrets among the hyperparameters are left out."""
    own = {name: value for name, value in config.hyperparameters.user.items() if not is_secret(name)}
    facts = {name: hidden(str(value))[:LONGEST_FACT] for name, value in list(own.items())[:MOST_FACTS]}
    ran = {"program": config.program, "engine": config.launch.engine.value.value, "hosts": len(config.resources.hosts)}
    return {
        "trackers": list(config.trackers),
        "data": str(config.paths.output_data),
        "state": str(config.paths.checkpoints),
        "host": config.resources.current_host,
        "job": config.job_name,
        "facts": {**{f"algorun.{name}": value for name, value in ran.items()}, "algorun.ranks": world_size, **facts},
        "metrics": dict(config.metrics),
        "sizes": _sizes(config.paths.output_data),  # of what an earlier job has left there
        "flush_s": FLUSH_S,
    }


def _sizes(folder: Path) -> dict[str, int]:
    """The bytes of the files that trackers are fed from, by their names below `folder`."""
    found: dict[str, int] = {}
    for path in (*folder.glob("*.jsonl"), *folder.glob("logs/rank-00000.log")):
        with contextlib.suppress(OSError):
            found[str(path.relative_to(folder))] = path.stat().st_size
    return found
