"""Simulated hosts as tests start them: to their end, or in the background."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.conftest import algorun, clean_environ

PROGRAMS = Path(__file__).parents[1] / "programs"


def simulate(engine, *program, folder, marker, layout="2x2", **environ):
    return algorun(
        "simulate", "-j", layout, "--engine", engine, *map(str, program), cwd=folder, ALGORUN_TEST=marker, **environ
    )


class Running:
    """A simulation at work, its output in a file."""

    def __init__(self, engine, *program, folder, marker, layout="2x2", python=sys.executable, **environ):
        self.folder = folder
        self.log = folder / "output.txt"
        argv = [
            python,
            "-I",
            "-m",
            "algorun",
            "simulate",
            "-j",
            layout,
            "--engine",
            engine,
            *map(str, program),
        ]
        with open(self.log, "w") as out:
            self.process = subprocess.Popen(
                argv, cwd=folder, env=clean_environ(ALGORUN_TEST=marker, **environ), stdout=out, stderr=out,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's background
            )  # fmt: skip

    def wait_for(self, text, count, timeout=60):
        deadline = time.monotonic() + timeout
        while self.log.read_text().count(text) < count:
            assert time.monotonic() < deadline, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    def supervisor(self, host):
        """The process that is the supervisor of a simulated host."""
        for child in psutil.Process(self.process.pid).children():
            if child.environ()["SAGEMAKER_BASE_DIR"].endswith(f"/{host}"):
                return child
        raise AssertionError(host)

    def end(self, timeout=60):
        self.process.wait(timeout)
        return self.process.returncode

    def failure(self, host):
        return (self.folder / "algorun-simulate" / host / "output" / "failure").read_text()
