"""Commands of the client in processes of their own that may be killed. They start fast: their libraries are loaded already."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.train.training_runs import FORKS, load_once

ENDS_S = 240.0
# A process has one fork server: had this one lists of its own, ranks of later tests would load torch each by itself.
load_once("boto3", "s3transfer", "botocore.config", "rich.progress")


def _run(words: list[str], environ: Mapping[str, str], folder: str, said: str) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    from algorun_client.commands.main import main

    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Command:
    """A command that runs."""

    def __init__(self, words: list[str], environ: Mapping[str, str], folder: Path, said: Path) -> None:
        self._process = FORKS.Process(target=_run, args=(words, dict(environ), str(folder), str(said)))
        self._process.start()
        self.said = said

    @property
    def runs(self) -> bool:
        """False once it has ended."""
        return self._process.is_alive()

    def wait(self, longest_s: float) -> None:
        """Waits for its end, but not longer."""
        self._process.join(longest_s)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def code(self) -> int:
        """Waits for its end; -9 if it was killed."""
        self._process.join(ENDS_S)
        assert self._process.exitcode is not None, f"it still runs: {self.said.read_text()}"
        return self._process.exitcode
