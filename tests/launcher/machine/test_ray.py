"""Ray on a host: where it is, which version."""

from __future__ import annotations

import sys

import pytest

from algorun.common.errors import UserError
from algorun.machine import ray, ray_installation


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No Ray beside the interpreter, and none in its folders."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(sys, "path", [])
    return tmp_path


def install(folder, *distributions: str) -> None:
    for name in distributions:
        (folder / f"{name}.dist-info").mkdir(parents=True)


def program(folder) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "ray"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return str(file)


def test_ray_beside_the_interpreter_comes_before_that_of_path(alone):
    beside, other = program(alone / "bin"), program(alone / "other" / "bin")
    install(alone / "lib" / "python3.11" / "site-packages", "ray-2.60.0", "grpcio-1.80.0")
    found = ray_installation.look({"PATH": other.removesuffix("/ray")})
    assert found == ray.Ray(beside, "2.60.0", has_client_server=True)


@pytest.mark.parametrize("where", ["lib/python3.12/site-packages", "lib64/python3.12/site-packages", ""])
def test_the_version_is_that_of_the_program(alone, where):
    """pip's --target puts packages beside `bin`."""
    install(alone / "other" / where, "ray-2.50.1", "grpcio_tools-1.0")
    found = ray_installation.look({"PATH": program(alone / "other" / "bin").removesuffix("/ray")})
    assert found is not None
    assert (found.version, found.has_client_server) == ("2.50.1", False)


def test_without_ray_the_error_says_what_to_install(alone):
    found = ray_installation.look({"PATH": str(alone)})
    assert found is None
    with pytest.raises(
        UserError,
        match="engine ray: Ray is neither beside the Python interpreter nor on PATH; allowed: Ray 2; fix: add ray to requirements.txt",
    ):
        ray.usable(found)


def test_ray_gets_no_address_that_it_would_replace():
    assert [ray.node_address(each) for each in ("127.0.0.1", "127.0.0.3", "10.0.0.1")] == [
        "127.0.0.2",
        "127.0.0.3",
        "10.0.0.1",
    ]
