"""What a host accepts of the command line that mpirun on the leader wants for a daemon."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.errors import UserError
from algorun.machine.openmpi import MCA
from algorun.machine.openmpi_daemon import FLAGS, ITS_OWN, OF_OPTIONS, accepted, set_here, words_of

# What mpirun 4.1.4 hands to its remote shell with these options, and prterun 5.0.11 with the same.
OPTIONS = (
    "--tag-output --verbose --report-bindings --debug-daemons --map-by slot --bind-to none --leave-session-attached"
)
FROM_4 = (
    "PATH=/usr/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=/usr/lib:${LD_LIBRARY_PATH:-} ; export LD_LIBRARY_PATH ; "
    "DYLD_LIBRARY_PATH=/usr/lib:${DYLD_LIBRARY_PATH:-} ; export DYLD_LIBRARY_PATH ;   /usr/bin/orted "
    '-mca orte_debug_daemons "1" -mca orte_leave_session_attached "1" -mca orte_report_bindings "1" -mca ess "env" '
    '-mca ess_base_jobid "705626112" -mca ess_base_vpid 2 -mca ess_base_num_procs "3" '
    '-mca orte_node_regex "vm,algo-[1:1],[3:192].0.2.7@0(3)" -mca orte_hnp_uri "705626112.0;tcp://127.0.0.1:45143" '
    '--mca plm_rsh_agent "/leader/python /leader/rsh.py" --mca plm_rsh_no_tree_spawn "1" --mca rtc "^hwloc" '
    '--mca oob_tcp_if_include "eth0" --mca btl "tcp,self" -mca plm "rsh" -mca rmaps_base_mapping_policy "slot" '
    '-mca hwloc_base_binding_policy "none" -mca orte_tag_output "1" -mca hwloc_base_report_bindings "1" '
    '-mca pmix "^s1,s2,cray,isolated"'
)
FROM_5 = (
    "PRTE_PREFIX=/env;export PRTE_PREFIX;PMIX_PREFIX=/env;export PMIX_PREFIX;/env/bin/prted --debug-daemons "
    '--leave-session-attached --allow-run-as-root --prtemca ess "env" --prtemca ess_base_nspace "prterun-vm-18170@0" '
    '--prtemca ess_base_vpid 2 --prtemca ess_base_num_procs "3" --prtemca prte_hnp_uri '
    '"prterun-vm-18170@0.0;tcp://192.0.2.2,172.17.0.1:60893:64,24,16;tcp6://[fd00::2]:48467:64,24,16" --prtemca PREFIXES '
    '"errmgr,ess,filem,grpcomm,iof,odls,oob,plm,prtebacktrace,prtedl,rtc,schizo,state,hwloc,if,reachable" '
    '--prtemca plm_ssh_agent "/leader/python /leader/rsh.py" --prtemca rtc "^hwloc" --prtemca pmix_session_server "1" '
    '--prtemca plm "ssh"'
)
AGENT = "/env/python /env/rsh.py"
MPIRUN_4 = (
    *(
        "mpirun",
        "-np",
        "2",
        "--mca",
        "plm_rsh_agent",
        AGENT,
        "--mca",
        "plm_rsh_no_tree_spawn",
        "1",
        "--mca",
        "rtc",
        "^hwloc",
    ),
    *("--mca", "oob_tcp_if_include", "ens5", "--mca", "btl", "tcp,self", "-x", "FOO=bar", "python", "rank.py"),
)
MPIRUN_5 = ("mpirun", "--prtemca", "plm_ssh_agent", AGENT, "--prtemca", "rtc", "^hwloc", "python", "rank.py")


@pytest.mark.parametrize(("command", "mpirun"), [(FROM_4, MPIRUN_4), (FROM_5, MPIRUN_5)], ids=["4.1", "5"])
def test_what_mpirun_adds_is_accepted_and_what_the_job_sets_has_this_host_s_value(command, mpirun):
    program, *options = words_of(command)
    assert program in ("/usr/bin/orted", "/env/bin/prted")
    argv = accepted(options, set_here(mpirun, {}))
    expected = [word.replace("/leader/python /leader/rsh.py", AGENT).replace("eth0", "ens5") for word in options]
    assert argv == expected
    assert AGENT in argv
    assert not any("/leader" in word for word in argv)


def test_parameters_of_the_environment_count_and_those_of_the_command_line_come_first():
    own = set_here(MPIRUN_4, {"OMPI_MCA_btl": "self", "PRTE_MCA_x": "1", "OTHER": "2", "PMIX_MCA_gds": "hash"})
    assert own["btl"] == "tcp,self"
    assert (own["x"], own["gds"]) == ("1", "hash")
    assert "OTHER" not in own
    assert accepted(["-mca", "gds", "evil"], own) == ["-mca", "gds", "hash"]


@pytest.mark.parametrize(
    "options",
    [
        ["-mca", "plm_rsh_agent", "/tmp/evil"],
        ["--mca", "orte_launch_agent", "/tmp/evil"],
        ["-mca", "orte_fork_agent", "/tmp/evil"],
        ["--prtemca", "mca_base_component_path", "/tmp"],
        ["-mca", "mca_base_param_files", "/tmp/x"],
        ["-mca", "orte_xterm", "0"],
        ["-mca", "ess", "singleton"],
        ["-mca", "plm", "slurm"],
        ["-mca", "ess_base_vpid", "1;x"],
        ["-mca", "prte_hnp_uri", "x y"],
        ["--daemonize"],
        ["--prefix", "/tmp"],
        ["-c", "id"],
        ["x"],
        ["-mca"],
        ["-mca", "pml"],
    ],
)
def test_anything_else_is_refused_by_name(options):
    with pytest.raises(UserError, match="mpirun's daemon: the leader asks for"):
        accepted(options, set_here(MPIRUN_5, {}))


@given(
    st.sampled_from(sorted(MCA)), st.from_regex(r"[a-z]{2,8}(_[a-z]{2,8}){0,3}", fullmatch=True), st.text(max_size=9)
)
def test_a_parameter_that_nobody_knows_is_never_accepted(option, name, value):
    known = re.fullmatch(OF_OPTIONS, name) or any(re.fullmatch(each, name) for each in ITS_OWN)
    try:
        argv = accepted([option, name, value], {})
    except UserError:
        return
    assert known
    assert argv == [option, name, value]


def test_flags_have_no_value():
    assert accepted(sorted(FLAGS), {}) == sorted(FLAGS)
