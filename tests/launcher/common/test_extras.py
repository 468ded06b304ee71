"""What a missing extra needs, named so that it can be installed where the user is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import sys
import tomllib

import pytest

from algorun.common import extras
from tests.conftest import ROOT


@pytest.mark.parametrize("extra", ["client", "report", "train", "aws"])
def test_the_line_names_what_the_project_asks_for(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = shlex.split(extras.install(extra, "x"))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    plain = {"".join(sorted(each)) for each in words[4:]}  # `>=5,<6` may come as `<6,>=5`
    assert plain == {"".join(sorted(each)) for each in project["optional-dependencies"][extra]}


def test_without_metadata_the_missing_package_is_named(monkeypatch):
    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", none)
    monkeypatch.setattr(sys, "executable", "/home/a b/python")
    assert extras.install("client", "rich") == "'/home/a b/python' -m pip install rich"


def test_an_environment_without_pip_is_uv_s(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    error = extras.missing("algorun report", "jinja2", "report")
    assert str(error) == (
        f"algorun report: jinja2 is not installed; fix: uv pip install --python {sys.executable} 'jinja2>=3.1'"
    )
    assert error.code == 64
