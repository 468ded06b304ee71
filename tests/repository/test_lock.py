"""dev.lock has a version of each package that a pyproject.toml of the clone names."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OF_THE_MACHINE = {"torch"}  # make's TORCH says which build


def versions():
    """All versions of each package in the lock: for several Pythons it may have several."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "dev.lock").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.partition(" ;")[0].split("==")
            found.setdefault(canonicalize_name(name), []).append(version)
    return found


def wanted():
    """(file, requirement) of each package that is asked for."""
    for path in ROOT.glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        lists = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
        yield from ((path.parent.name, Requirement(each)) for names in lists for each in names)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    for name, group in groups.items():
        yield from ((name, Requirement(each)) for each in group if isinstance(each, str))


@pytest.mark.parametrize(("where", "requirement"), list(wanted()), ids=str)
def test_it_has_a_version_that_fits(where, requirement):
    if requirement.name in OF_THE_MACHINE:
        assert requirement.name not in versions()
    else:
        held = versions()[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in held), f"{where}: docker/lock.sh"


def test_it_names_no_index_and_no_build_of_torch():
    text = (ROOT / "dev.lock").read_text()
    assert "://" not in text
    assert not [name for name in versions() if name.startswith(("nvidia-", "cuda-")) or name in ("torch", "triton")]
