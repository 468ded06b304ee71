"""What a missing distribution or its libraries need, named so that it can be installed where the user is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import sys
import tomllib

import pytest

from algorun.common import distributions
from tests.conftest import ROOT


def project(folder):
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(("distribution", "folder"), [("algorun-client", "client"), ("algorun-train", "train")])
def test_the_line_names_what_the_distribution_asks_for(distribution, folder):
    words = shlex.split(distributions.install(distribution, "x"))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    plain = {"".join(sorted(each)) for each in words[4:]}  # `>=5,<6` may come as `<6,>=5`
    assert plain == {"".join(sorted(each)) for each in project(folder)["dependencies"]}


@pytest.mark.parametrize("folder", ["launcher", "train", "client", "compat"])
def test_no_distribution_asks_an_index_for_another_one_of_algorun(folder):
    """Whoever registers the name there would be installed."""
    described = project(folder)
    extras = described.get("optional-dependencies", {}).values()
    asked = [*described["dependencies"], *(each for extra in extras for each in extra)]
    assert not [each for each in asked if each.startswith("algorun")]


def test_the_folders_are_those_of_the_clone():
    assert {name: project(folder)["name"] for name, folder in distributions.FOLDERS.items()} == {
        name: name for name in distributions.FOLDERS
    }
    for package, name in distributions.PACKAGES.items():
        assert (ROOT / distributions.FOLDERS[name] / package / "__init__.py").exists()


def test_without_metadata_the_missing_package_is_named(monkeypatch):
    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", none)
    monkeypatch.setattr(sys, "executable", "/home/a b/python")
    assert distributions.install("algorun-client", "rich") == "'/home/a b/python' -m pip install rich"


def test_an_environment_without_pip_is_uv_s(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["jinja2>=3.1", 'other; extra == "more"'])
    error = distributions.missing("algorun report", "jinja2", "algorun-client")
    assert str(error) == (
        f"algorun report: jinja2 is not installed; fix: uv pip install --python {sys.executable} 'jinja2>=3.1'"
    )
    assert error.code == 64


def test_a_missing_distribution_is_a_folder_of_the_clone():
    error = distributions.missing("algorun submit", "algorun_client", "algorun-client")
    fix = f"{sys.executable} -m pip install ./client, in the clone of algorun that this one is from"
    assert str(error) == f"algorun submit: algorun-client is not installed; fix: {fix}"
