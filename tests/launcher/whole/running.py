"""Simulated hosts as tests start them: to their end, or in the background."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.conftest import algorun, clean_environ

PROGRAMS = Path(__file__).parents[1] / "programs"


def simulate(engine, *program, folder, marker, layout="2x2", resume=False, **environ):
    words = ["simulate", *["--resume"] * resume, "-j", layout, "--engine", engine, *map(str, program)]
    return algorun(*words, cwd=folder, ALGORUN_TEST=marker, **environ)


@contextlib.contextmanager
def busy(programs):
    """Other programs on this machine that want all of its cores."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


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
            environ = clean_environ(ALGORUN_TEST=marker, **environ)
            self.process = subprocess.Popen(argv, cwd=folder, env=environ, stdout=out, stderr=out)

    def wait_for(self, text, count, timeout=60):
        deadline = time.monotonic() + timeout
        while True:
            ended = self.process.poll() is not None  # first: what it printed at its end is in the log then
            log = self.log.read_text()
            if log.count(text) >= count:
                return
            assert not ended, log
            assert time.monotonic() < deadline, log
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
