"""Rows fail, not skip, where something is missing, and a skip is a failure."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rows import ROWS, Row
from sdk_client import Seen
from sdk_docker import IMAGE, alone, compose_version, docker
from sdk_environment import why_not
from sdk_table import again
from tuner_rows import TUNERS, TunerRow


@dataclass
class Outcome:
    """What became of one row."""

    row: Row | TunerRow
    seconds: float | None
    reason: str
    """empty for a row that passed"""


TABLE: tuple[Row | TunerRow, ...] = (*ROWS, *TUNERS)
OUTCOMES: dict[str, Outcome] = {}
VERSIONS: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sdk-table", type=Path, metavar="FILE", help="write the table of all rows as Markdown")


@pytest.fixture(scope="session")
def ready() -> Iterator[None]:
    """This machine can run rows, and no other run of them is busy."""
    reason = why_not()
    assert not reason, reason
    with alone():
        yield


@pytest.fixture
def note(request: pytest.FixtureRequest) -> object:
    """Notes what a client said of itself and how long it took."""

    def noted(seen: Seen) -> None:
        VERSIONS.update(
            seen.versions if "sagemaker-train" in seen.versions else {"sagemaker 2": seen.versions["sagemaker"]}
        )
        request.node.sdk_seconds = seen.seconds

    return noted


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if (row := getattr(item, "callspec", None) and item.callspec.params.get("row")) is not None:
        reason = ""
        if call.excinfo is not None:
            # Of a pytest-rewritten assertion the first line says what matters; logs follow.
            lines = [line for line in str(call.excinfo.value).splitlines() if line.strip()]
            reason = ("skipped: " if report.skipped else "") + (lines[0] if lines else call.excinfo.typename)
        before = OUTCOMES.get(row.id)
        if reason or before is None:
            OUTCOMES[row.id] = Outcome(row, getattr(item, "sdk_seconds", None), reason)
        elif before.seconds is None:
            before.seconds = getattr(item, "sdk_seconds", None)
    return report


def _table(markdown: bool) -> list[str]:
    heads = ["row", "instances", "client", "expectation", "seconds", "passed"]
    cells = [heads]
    for row in TABLE:
        if (outcome := OUTCOMES.get(row.id)) is None:
            continue
        seconds = "" if outcome.seconds is None else f"{outcome.seconds:.0f}"
        reason = re.sub(r"(/[\w.-]+){3,}/", "../", re.sub(r"\s+", " ", outcome.reason))[:160]  # no path of this machine
        cells.append([row.name, str(row.hosts), row.client, row.expects, seconds, f"no: {reason}" if reason else "yes"])
    if markdown:
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells]
        return [lines[0], "|---|---|---|---|---|---|", *lines[1:]]
    widths = [max(len(line[at]) for line in cells) for at in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not OUTCOMES:
        return
    passed = sum(not outcome.reason for outcome in OUTCOMES.values())
    terminalreporter.section("SageMaker SDKs")
    for line in _table(markdown=False):
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"{passed} of {len(OUTCOMES)} rows passed, {len(TABLE)} rows in the table")
    if (path := config.getoption("sdk_table", default=None)) is None:
        return
    label = '{{index .Config.Labels "org.opencontainers.image.revision"}}'
    revision, day = docker("image", "inspect", "--format", label, IMAGE)[:12], time.strftime("%Y-%m-%d")
    if len(OUTCOMES) < len(TABLE):
        text = again(path.read_text() if path.exists() else "", _table(markdown=True), revision, day)
        if text:
            path.write_text(text)
        left = f"{len(TABLE) - len(OUTCOMES)} rows did not run, and it has no table of this image with these rows"
        terminalreporter.write_line(f"written: {path}" if text else f"{path} is not written: {left}")
        return
    engine = docker("version", "--format", "{{.Server.Version}}")
    versions = ", ".join(f"{name} {version}" for name, version in sorted(VERSIONS.items()))
    lines = [
        "# The image under the SageMaker SDKs",
        "",
        "`make test-all PART=sdk` writes this file. Both SDKs drive the built image in their local modes, offline; every job has a network and",
        "an /opt/ml of its own (tests/sdk). Local modes cannot show real instances, GPUs and EFA. They have no tuner either: a server that boto3",
        "takes for SageMaker runs the jobs of those rows, in containers of the image.",
        "",
        f"{passed} of {len(OUTCOMES)} rows passed on {day}: image of revision {revision}, {versions}, "
        f"Docker {engine}, {compose_version()}, {platform.machine()}. Seconds are those of the whole client.",
        "",
        *_table(markdown=True),
        "",
    ]
    path.write_text("\n".join(lines))
    terminalreporter.write_line(f"written: {path}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if any(outcome.reason for outcome in OUTCOMES.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
