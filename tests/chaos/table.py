"""What became of each case, as a table for the terminal and for docs/chaos.md."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HEADS = ("id", "what", "engine", "verdict", "seconds", "bound", "bare torchrun", "bare mpirun", "passed")
LONGEST_REASON = 160


@dataclass(slots=True)
class Record:
    """One case under one engine."""

    id: str
    what: str
    engine: str
    bound_s: float | None = None
    seconds: float | None = None
    verdict: str = ""
    reason: str = "did not finish"
    """why it failed; empty for a case that passed"""


RECORDS: dict[tuple[str, str], Record] = {}
BASELINES: dict[tuple[str, str], str] = {}
"""seconds by (case, bare launcher)"""


@contextmanager
def recorded(id: str, what: str, engine: str, bound_s: float | None = None) -> Iterator[Record]:
    """A row of the table; an exception inside becomes its reason, and goes on."""
    record = RECORDS[id, engine] = Record(id, what, engine, bound_s)
    try:
        yield record
        assert None in (record.seconds, bound_s) or record.seconds <= bound_s, f"took {record.seconds:.1f} s, bound {bound_s:g}"  # type: ignore[operator]  # fmt: skip
    except BaseException as error:
        record.reason = str(error) or type(error).__name__
        raise
    record.reason = ""


def _order(record: Record) -> tuple[int, int, str, int]:
    match = re.fullmatch(r"([FSCD])(\d+)(.*)", record.id)
    assert match is not None, record.id
    engines = ("native", "torchrun", "mpirun", "docker")
    return "FSCD".index(match[1]), int(match[2]), match[3], engines.index(record.engine)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _clean(text: str) -> str:
    """One line without paths of this machine."""
    return re.sub(r"(/[\w.-]+){3,}/", "../", re.sub(r"\s+", " ", text)).strip()[:LONGEST_REASON]


def rows() -> list[tuple[str, ...]]:
    found = []
    for record in sorted(RECORDS.values(), key=_order):
        peers = [BASELINES.get((record.id, peer), "") for peer in ("torchrun", "mpirun")]
        passed = f"no: {_clean(record.reason)}" if record.reason else "yes"
        found.append(
            (record.id, record.what, record.engine, _clean(record.verdict), _seconds(record.seconds),
             "" if record.bound_s is None else f"{record.bound_s:g}", *peers, passed)
        )  # fmt: skip
    return found


def as_text() -> list[str]:
    cells = [HEADS, *rows()]
    widths = [max(len(line[at]) for line in cells) for at in range(len(HEADS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def summary() -> str:
    passed = sum(not record.reason for record in RECORDS.values())
    return f"{passed} of {len(RECORDS)} cases passed"


def _versions() -> str:
    mpi = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    found = {
        "algorun": version("algorun"),
        "Python": platform.python_version(),
        "torch": version("torch"),
        "Open MPI": (re.findall(r"\d+\.\d+\.\d+", mpi) or ["none"])[0],
        "Linux": platform.release().partition("-")[0],
    }
    return ", ".join(f"{name} {number}" for name, number in found.items())


def write(path: Path) -> None:
    """docs/chaos.md, whole or not at all."""
    lines = [
        "# Faults, and how long until every host has left",
        "",
        "`make test-all PART=chaos` writes this file. Each case has two hosts of two ranks (gloo on CPUs) on one machine. Each host has its own",
        "network, mount and IPC namespace, control group, /tmp, /dev/shm and job folder; with engine `docker` it is a container.",
        "Seconds run from the fault until the process of the last surviving host has left. After each case no process, port,",
        "temporary folder or shared memory remained. The bare launchers ran the same scripts under the same faults; `>` marks the",
        "cap on their time. C1 counts false verdicts; its seconds are those of one run. A cable in user space delays the network.",
        "",
        f"{summary()} on {time.strftime('%Y-%m-%d')}: {_versions()}, {os.cpu_count()} cores.",
        "",
    ]
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (HEADS, *rows())]
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text("\n".join([*lines, table[0], "|" + "---|" * len(HEADS), *table[1:], ""]))
    os.replace(aside, path)
