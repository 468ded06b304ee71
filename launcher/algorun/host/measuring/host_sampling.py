"""Runs the process that measures this host (figure_sampler.py), and hears its figures."""

from __future__ import annotations

import json
import os
import signal
from typing import cast

from algorun.common import codec
from algorun.common.errors import UserError, exit_code
from algorun.common.event_loop import READ
from algorun.common.fast_dataclasses import replace
from algorun.host.processes.owner import send_below
from algorun.host.tools import Tools
from algorun.job.config import JobConfig
from algorun.machine import visible_gpus
from algorun.machine.probe import Machine
from algorun.plan.cluster import interface
from algorun.timing.host_figures import HostFigures, from_line

from .figure_setup import SamplerSetup

SILENT_S = 60.0  # thirty intervals without a line: the process hangs
LONGEST = 256 * 1024  # bytes without an end of line
MOST_SAMPLES = 64  # that nobody has taken
LAST_WORDS = 300  # characters of what the process has printed that is no line of figures


def setup(job: JobConfig, machine: Machine, begin: float) -> SamplerSetup:
    """What to measure on this host."""
    host, seen = job.resources.current_host, machine.visible
    return SamplerSetup(
        host=host,
        file=str(job.paths.host_figures(host)),
        interface=interface(job, machine).value,
        folders=job.paths.written,
        begin=begin,
        gpus=seen.count > 0,
        visible=seen.value if seen.variable == visible_gpus.VARIABLE else None,
    )


class HostSampling:
    """Figures of this host while its ranks run. Whatever happens to the process, the job goes on."""

    def __init__(self, tools: Tools, setup: SamplerSetup) -> None:
        self._tools, self._setup = tools, setup
        self._pid, self._pipe, self._heard_at = 0, -1, 0.0
        self._rest, self._words = b"", ""
        self._samples: list[HostFigures] = []

    def start(self, now: float) -> None:
        """Starts the process; warns where it cannot start."""
        words = json.dumps(codec.to_json(self._setup))
        argv = [self._tools.programs.python, "-I", "-u", "-m", "algorun.host.measuring.figure_sampler", words]
        try:
            reader, writer = os.pipe()
        except OSError as error:
            self._warn(f"no figures of this host: {error.strerror}")
            return
        try:
            self._pid = self._tools.owner.start(argv, os.environ, "/", writer, writer, what="figures", aside=True)
        except UserError as error:
            os.close(reader)
            self._warn(f"no figures of this host: {error}")
            return
        finally:
            os.close(writer)
        self._pipe, self._heard_at = reader, now
        self._rest, self._words = b"", ""
        os.set_blocking(reader, False)
        self._tools.loop.watch(reader, READ, lambda _: self._read())

    def take(self) -> list[HostFigures]:
        """The intervals that have ended since the last call."""
        found, self._samples = self._samples, []
        return found

    def look(self, now: float) -> None:
        """Ends the process if it hangs; called every second or so."""
        if self._pid and now - self._heard_at > SILENT_S:
            self._warn(f"no more figures of this host: nothing was measured for {SILENT_S:g} s")
            send_below(self._pid, signal.SIGKILL)
            self._pid = 0

    def is_sampler(self, pid: int) -> bool:
        """True for the process that runs."""
        return pid == self._pid

    def ended(self, returncode: int, now: float) -> None:
        """The process has ended by itself. If the GPUs' library may be the cause, another one goes on without it."""
        self._pid = 0
        self._read()
        self._close_pipe()
        why = f"its process ended with {exit_code(returncode)}{f': {self._words}' if self._words else ''}"
        if self._setup.gpus:
            self._warn(f"no more figures of this host's GPUs: {why}")
            self._setup = replace(self._setup, gpus=False)
            self.start(now)
        else:
            self._warn(f"no more figures of this host: {why}")

    def finish(self) -> None:
        """The job is over: the process writes its last line. Its owner ends it if it does not."""
        if self._pid:
            send_below(self._pid, signal.SIGTERM)
            self._pid = 0
        self._close_pipe()

    def _read(self) -> None:
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, LONGEST)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_pipe()
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-LONGEST:]
            for line in lines:
                self._hear(line)

    def _hear(self, line: bytes) -> None:
        self._heard_at = self._tools.loop.now()
        try:
            self._samples = [*self._samples, from_line(line)][-MOST_SAMPLES:]
        except ValueError:
            text = line.decode("utf-8", "replace")
            try:
                self._warn(str(cast("dict[str, object]", codec.loads(text))["warning"]))
            except (ValueError, TypeError, KeyError):  # a traceback, or what a library prints
                self._words = text.strip()[:LAST_WORDS] or self._words

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            self._tools.loop.forget(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def _warn(self, text: str) -> None:
        self._tools.warn(text)
