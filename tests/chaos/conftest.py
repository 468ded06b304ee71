"""What the fault table needs of the machine. The table is printed at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import baselines, table
from .network import Network
from .runner import Lane, run
from .sweep import sweep

NEEDED = ("ip", "ss", "nsenter", "unshare", "mount", "umount")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-table", type=Path, metavar="FILE", help="write the fault table as Markdown")
    parser.addoption("--chaos-repeats", type=int, default=1, metavar="N", help="so many runs of cases with several")


@pytest.fixture(scope="session")
def able() -> None:
    """This machine can make hosts."""
    assert os.geteuid() == 0, "namespaces need root"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    assert not missing, f"not on PATH: {missing} (iproute2, util-linux)"
    sweep()
    Network().close()


@pytest.fixture(scope="session")
def folder(able: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="session")
def repeats(request: pytest.FixtureRequest) -> int:
    """The least number of runs of cases that have several."""
    return int(request.config.getoption("chaos_repeats"))


@pytest.fixture(scope="session")
def lane(folder: Path, repeats: int, request: pytest.FixtureRequest) -> Iterator[Lane]:
    """All chosen cases that mostly wait, begun together."""
    made = Lane()
    chosen = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    for each in chosen:
        if "case" in each and each["case"].waits:
            made.add((each["case"].id, each["engine"]), run, each["case"], each["engine"], folder, repeats)
    for each in chosen:
        if "peer" in each:
            made.add((each["fault"].id, each["peer"], "bare"), baselines.run, each["fault"], each["peer"], folder)
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not table.RECORDS:
        return
    terminalreporter.section("chaos")
    for line in [*table.as_text(), table.summary()]:
        terminalreporter.write_line(line)
    if (path := config.getoption("chaos_table", default=None)) is not None:
        table.write(path)
        terminalreporter.write_line(f"written: {path}")
