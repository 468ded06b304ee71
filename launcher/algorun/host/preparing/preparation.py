"""Starts and follows the process that prepares this host (usercode/prepare.py), and reads its result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from algorun.common import codec
from algorun.common.errors import ExitCode, exit_code
from algorun.common.fast_dataclasses import dataclass
from algorun.host.output.logs import RankLog
from algorun.host.processes.owner import Owner, kill_sessions
from algorun.job.usercode import Setup
from algorun.outcome import report
from algorun.timing.clock import CAUSES


@dataclass(frozen=True, slots=True)
class Prepared:
    """How a preparation ended. `source` is the checksum of the fetched code; `error` is empty where all went well; `moments`
    say from when on it did what (timing/clock.py); `environment` is the folder of the job's own environment, "" if it has none."""

    source: str
    error: str
    code: int
    tail: str
    moments: tuple[tuple[float, str], ...] = ()
    environment: str = ""


class Preparation:
    """At most one preparation of this host. `pipe(stream)` gives the writing end of a pipe into its log."""

    def __init__(self, owner: Owner, log: RankLog, pipe: Callable[[int], int], run_dir: str) -> None:
        self._owner, self._log, self._pipe, self._run_dir = owner, log, pipe, run_dir
        self._result = f"{run_dir}/setup.json"
        self.pid = 0

    def start(self, setup: Setup, python: str) -> None:
        """Starts the process. Raises UserError where it cannot start (an address of 128 KiB)."""
        argv = [python, "-I", "-u", "-m", "algorun.usercode.prepare", json.dumps(codec.to_json(setup)), self._result]
        # A download that was cut short lies in the run folder, and is removed with it.
        environ = {**os.environ, "TMPDIR": self._run_dir}
        out, err = self._pipe(1), self._pipe(2)
        try:
            self.pid = self._owner.start(argv, environ, "/", out, err, what="setup")
        finally:
            os.close(out)
            os.close(err)

    def kill(self) -> None:
        """Kills the process and all that it has started."""
        if self.pid:
            kill_sessions([self.pid])

    def ended(self, returncode: int) -> Prepared:
        """Reads the result. The pipes of the process have been read to their end."""
        self.pid = 0
        result = report.read_json(self._result)
        error = str(result.get("error", "")) or ("" if returncode == 0 else f"ended with {exit_code(returncode)}")
        code = int(ExitCode.CONFIGURATION)
        if returncode < 0 or returncode == ExitCode.PREFLIGHT:
            code = exit_code(returncode)
        moments = _moments(result.get("moments"))
        environment = str(result.get("environment", ""))
        return Prepared(str(result.get("source", "")), error, code, self._log.tail, moments, environment)


def _moments(found: object) -> tuple[tuple[float, str], ...]:
    """The moments that the preparation has written."""
    pairs = found if isinstance(found, list) else []
    return tuple((float(at), str(cause)) for at, cause in pairs if cause in CAUSES)
