"""Every variable ALGORUN_* is declared in one table, which the documentation's page is made of."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import fields
from algorun.job import config, settings
from algorun.job.limits import ControlSettings, Limits
from algorun.job.request import LaunchRequest
from algorun.job.settings import GROUPS, WAITS
from algorun_client.common.settings import SETTINGS as CLIENT

ROOT = Path(__file__).resolve().parents[3]
DECLARED = {setting.name for group in (*GROUPS.values(), CLIENT) for setting in group}
NAME = re.compile(r"ALGORUN_[A-Z0-9_]+")
SOURCES = (
    "launcher",
    "train",
    "client",
    "compat",
    "docker",
    "bench",
    "examples",
    "Dockerfile",
    "build.sh",
    "README.md",
    "docs",
)
OF_TESTS = {"ALGORUN_TEST_IMAGE"}  # make test-all PART=sdk


def texts() -> dict[str, str]:
    """The sources and pages of the project, by path."""
    found = {}
    for top in SOURCES:
        path = ROOT / top
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.suffix in ("", ".py", ".pth", ".sh", ".md", ".yaml") and file.is_file():
                found[str(file.relative_to(ROOT))] = file.read_text(encoding="utf-8", errors="replace")
    return found


def test_every_variable_that_the_sources_and_pages_name_is_declared():
    unknown = {path: set(NAME.findall(text)) - DECLARED - OF_TESTS for path, text in texts().items()}
    assert {path: names for path, names in unknown.items() if names} == {}


def test_a_name_is_written_as_it_is_searched():
    """No name is put together: a search for ALGORUN_HANG_S finds where it is read."""
    assert [
        path for path, text in texts().items() if path.endswith(".py") and re.search(r"ALGORUN_[A-Z_]*\{", text)
    ] == []
    tables = ("launcher/algorun/job/settings.py", "client/algorun_client/common/settings.py")
    table = "".join((ROOT / path).read_text() for path in tables)
    assert [name for name in DECLARED if f'"{name}"' not in table] == []


def test_the_launcher_reads_them_in_one_module():
    reading = re.compile(
        r"""environ(?:\.get\(|\[|\.pop\()\s*["']ALGORUN_|["']ALGORUN_\w+["'] (?:not )?in \w*\.?environ"""
    )
    readers = {path for path, text in texts().items() if path.startswith("launcher/") and reading.search(text)}
    assert {
        path for path in readers if not path.startswith(("launcher/algorun/inside/", "launcher/algorun-rank.pth"))
    } == set()


def test_the_page_is_what_the_program_prints():
    printed = subprocess.run(
        [sys.executable, "-I", "docs/settings_page.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert (ROOT / "docs" / "settings.md").read_text() == printed, "python docs/settings_page.py > docs/settings.md"


def test_each_wait_of_a_job_is_the_setting_of_its_name():
    values = {setting.name: str(number) for number, setting in enumerate(WAITS, 20) if "HEARTBEAT" not in setting.name}
    limits = Limits.of(values)
    for setting in WAITS:
        field = setting.name.removeprefix("ALGORUN_").lower()
        assert getattr(Limits(), field) == setting.default
        assert getattr(limits, field) == float(values.get(setting.name, setting.default))
    assert len(WAITS) == len(fields(Limits))


def test_an_empty_variable_counts_as_unset():
    empty = dict.fromkeys(DECLARED, "")
    assert Limits.of(empty) == Limits()
    assert ControlSettings.of(empty) == ControlSettings.of({})
    assert settings.ENGINE.read(empty) is None
    assert settings.RESTARTS.read(empty) == settings.RESTARTS.read({settings.RESTARTS.name: "0"}) == 0


def test_a_token_of_the_users_own_is_told_from_the_jobs_arn():
    arn = {"TRAINING_JOB_ARN": "arn:aws:sagemaker:1:training-job/x"}
    assert ControlSettings.of(arn) == ControlSettings({}, 29600, arn["TRAINING_JOB_ARN"], own_token=False)
    assert ControlSettings.of({**arn, "ALGORUN_TOKEN": "x"}).own_token


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("ALGORUN_HANG_S", "never", "'never' is not a positive number of seconds"),
        ("ALGORUN_HEARTBEAT_S", "10", "10 s between heartbeats is too long: a host is lost after 10 s"),
    ],
)
def test_a_wrong_wait_is_refused_by_name(name, text, says):
    with pytest.raises(UserError, match=says) as caught:
        Limits.of({name: text})
    assert caught.value.where == name


def test_figures_are_measured_unless_they_are_off():
    assert settings.FIGURES.read({}) is True
    assert settings.FIGURES.read({"ALGORUN_FIGURES": "off"}) is False
    with pytest.raises(UserError, match="ALGORUN_FIGURES: 'no' is not allowed; allowed: off"):
        settings.FIGURES.read({"ALGORUN_FIGURES": "no"})


def test_a_wrong_value_of_what_only_ranks_read_is_refused_before_they_start(tmp_path):
    environ = {"SAGEMAKER_BASE_DIR": str(tmp_path), "ALGORUN_HOOKS": "no"}
    with pytest.raises(UserError, match="ALGORUN_HOOKS: 'no' is not allowed; allowed: off"):
        config.read_config(LaunchRequest(target="ddp"), environ)
    assert config.read_config(LaunchRequest(target="ddp"), {**environ, "ALGORUN_HOOKS": "off"})
    environ = {"SAGEMAKER_BASE_DIR": str(tmp_path), "ALGORUN_CUDA_ON_CPU": "Strict"}
    with pytest.raises(UserError, match="ALGORUN_CUDA_ON_CPU: 'Strict' is not allowed; allowed: 0, 1, script, strict"):
        config.read_config(LaunchRequest(target="ddp"), environ)


@pytest.mark.parametrize(
    "text", ["50", "1-5", "60-50", "5-5000", "a-b", "5-\u0666", "-5", "2-", "5--6", "2-9999999999999999"]
)
def test_a_wrong_window_of_steps_is_refused_by_name(text):
    with pytest.raises(UserError) as caught:
        settings.TRACE_STEPS.read({"ALGORUN_TRACE_STEPS": text})
    assert str(caught.value) == (
        f"ALGORUN_TRACE_STEPS: {text!r} is no window of steps; allowed: FIRST-LAST: FIRST from 2, up to 1000 steps; "
        "fix: such as 50-60"
    )


def test_a_window_may_be_one_step():
    assert settings.TRACE_STEPS.read({}) is None
    assert settings.TRACE_STEPS.read({"ALGORUN_TRACE_STEPS": "2-2"}) == (2, 2)
    assert settings.TRACE_STEPS.read({"ALGORUN_TRACE_STEPS": "50-1049"}) == (50, 1049)
