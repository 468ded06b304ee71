"""The command lines of Open MPI's daemons: orted's, and in version 5 prted's."""

from __future__ import annotations

import pytest

from algorun.control.wire.messages import DaemonEnded, StartDaemon
from algorun.host.engines.daemons import Daemons, with_session
from algorun.machine.openmpi import OpenMpi

FOUR = OpenMpi("/usr/bin/mpirun", True, 4, "orted")
MPIRUN = ("mpirun", "-np", "2", "--mca", "btl", "tcp,self", "python", "rank.py")
FIVE = OpenMpi("/env/bin/mpirun", False, 5, "/env/bin/prted", "/env")
# What prterun 5.0.11 hands to its remote shell, shortened at its end.
FROM_PRTERUN = (
    "PRTE_PREFIX=/leader;export PRTE_PREFIX;PMIX_PREFIX=/leader;export PMIX_PREFIX;"
    "LD_LIBRARY_PATH=/leader/lib:/leader/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;"
    "DYLD_LIBRARY_PATH=/leader/lib:/leader/lib:$DYLD_LIBRARY_PATH;export DYLD_LIBRARY_PATH;"
    '/leader/bin/prted --allow-run-as-root --prtemca ess "env" '
    '--prtemca prte_hnp_uri "prterun-vm-23551@0.0;tcp://192.0.2.2:41913:24;tcp6://[fd00::2]:54547:64" --tree-spawn'
)


@pytest.mark.parametrize(
    ("major", "option", "name"), [(4, "-mca", "orte_tmpdir_base"), (5, "--prtemca", "prte_tmpdir_base")]
)
def test_session_files_lie_in_the_hosts_own_folder(major, option, name):
    argv = ["daemon", option, name, "/leader", option, "ess", "env"]
    assert with_session(argv, major, "/mine") == ["daemon", option, name, "/mine", option, "ess", "env"]
    assert with_session(["daemon"], major, "/mine") == ["daemon", option, name, "/mine"]


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "orted --mca plm_rsh_agent /tmp/evil",
        "orted --mca mca_base_component_path /tmp/evil",
        "prted --prtemca prte_fork_agent /tmp/evil",
        "",
        "'unfinished",
        "orted2 -x",
        "sh -c orted",
        "prted -x",
        "A=1;export A;rm -rf /",
        "A=1;rm x;export A;orted",
        "( test ! -r ./.profile || . ./.profile; rm -rf / )",
        "( test ! -r ./.profile || . ./.profile; orted",
    ],
)
@pytest.mark.parametrize("openmpi", [FOUR, FIVE])
def test_only_this_version_s_daemon_is_started(command, openmpi):
    sent = []
    daemons = Daemons(openmpi, (), lambda argv: pytest.fail(f"started {argv}"), sent.append)
    command = "orted -x" if openmpi is FIVE and command == "prted -x" else command
    assert f"{openmpi.daemon.rpartition('/')[2]} cannot be started" in daemons.start(
        StartDaemon("1", "algo-2", command)
    )
    assert sent == [DaemonEnded("1", 1)]


def test_the_daemon_is_this_host_s_own():
    started, sent = [], []
    daemons = Daemons(FOUR, MPIRUN, lambda argv: started.append(argv) or 7, sent.append)
    assert daemons.start(StartDaemon("1", "algo-2", "/opt/ml/input/orted --mca btl 'a b'")) == ""
    assert started == [["orted", "--mca", "btl", "tcp,self"]]
    assert daemons.exited(7, -9)
    assert sent[-1] == DaemonEnded("1", 137)


@pytest.mark.parametrize("around", ["{}", "( test ! -r ./.profile || . ./.profile; {} )"], ids=["bash", "sh"])
def test_version_5_names_the_leader_s_folders_which_are_left_out(around):
    """mpirun has the profile read first where the user's login shell is sh, as useradd makes it on Debian."""
    started = []
    daemons = Daemons(FIVE, MPIRUN, lambda argv: started.append(argv) or 7, lambda message: None)
    assert daemons.start(StartDaemon("1", "algo-2", around.format(FROM_PRTERUN))) == ""
    (argv,) = started
    assert argv[:5] == ["/env/bin/prted", "--allow-run-as-root", "--prtemca", "ess", "env"]
    assert argv[-2:] == ["prterun-vm-23551@0.0;tcp://192.0.2.2:41913:24;tcp6://[fd00::2]:54547:64", "--tree-spawn"]
    assert not any("/leader" in word for word in argv)


def test_no_daemon_is_started_under_another_engine():
    daemons = Daemons(None, (), lambda argv: pytest.fail(f"started {argv}"), lambda message: None)
    assert "cannot be started" in daemons.start(StartDaemon("2", "algo-2", "orted"))
