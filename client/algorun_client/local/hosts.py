"""What carries out a job: simulated hosts, or containers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class LocalHosts(Protocol):
    """The hosts of one attempt at a job. Each has a folder, its tree, that it sees as its /opt/ml."""

    @property
    def interface(self) -> str:
        """The network interface by which the hosts reach each other."""
        ...

    @property
    def can_follow_links(self) -> bool:
        """True if an input may be a link to an object."""
        ...

    @property
    def codes(self) -> Mapping[str, int]:
        """The exit codes of the hosts that have ended, in the order in which they ended."""
        ...

    @property
    def have_ended(self) -> bool:
        """True once no host runs and its output is written."""
        ...

    def opt_ml(self, tree: Path) -> Path:
        """The path by which a host sees its own tree."""
        ...

    def code(self, folder: Path) -> Path:
        """The path by which every host sees the folder with the code that was submitted."""
        ...

    def start(self, trees: Mapping[str, Path], streams: Mapping[str, Path]) -> None:
        """Starts all hosts. `streams`: the log stream of each. Raises ApiError or OSError."""
        ...

    def pump(self, timeout_s: float) -> None:
        """Waits for output, at most `timeout_s`, and writes it; notices hosts that have ended."""
        ...

    def processes(self) -> Mapping[str, int]:
        """The first process of each host that runs, if this machine can see them. Called from another thread too."""
        ...

    def signal(self, number: int) -> None:
        """A signal to the first process of each host that runs."""
        ...

    def make_readable(self, folder: str) -> None:
        """Makes the files below this folder of every tree readable for the caller. Called from another thread too."""
        ...

    def close(self) -> None:
        """Ends what still runs. Afterwards every file below the trees is the caller's."""
        ...
