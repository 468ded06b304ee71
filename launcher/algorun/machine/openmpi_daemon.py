"""The command line of Open MPI's daemon, as mpirun on the leader asks for it, and what of it another host accepts. Pure.

A daemon's parameters can name programs to run and libraries to load. So a host takes from the leader only what mpirun itself
adds for its daemons. What the job's own command line of mpirun sets has this host's value, and anything else is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from algorun.common.errors import UserError

from .openmpi import MCA

# mpirun gives its remote shell a command that first exports the leader's folders: `PATH=..; export PATH; ..`. They may
# not exist on this host.
FOLDERS = r"\s*(?:\w+=[^;]*;\s*export\s+\w+\s*;\s*)*"
# If the user's login shell is sh or ksh, mpirun puts this around the command.
PROFILE = r"\( test ! -r \./\.profile \|\| \. \./\.profile;(.*)\)\s*"

# Options of the daemon without a value, which mpirun adds.
FLAGS = frozenset(("--allow-run-as-root", "--leave-session-attached", "--tree-spawn", "--debug-daemons", "--debug"))
# Parameters that mpirun adds for the daemon itself, and what they may say.
ITS_OWN = {
    "ess": "env",
    "plm": "rsh|ssh",
    "PREFIXES": r"[a-z,]+",
    "pmix": r"[\w^,]+",
    "pmix_session_server": "[01]",
    r"ess_base_(jobid|vpid|num_procs)": r"\d+",
    "ess_base_nspace": r"[\w.@-]+",
    "orte_node_regex": r"[\w.,:@()\[\]-]+",
    "(orte|prte)_(hnp|parent)_uri": r"[\w.,:;/@\[\]-]+",
    "(orte|prte)_tmpdir_base": ".*",  # gets this host's folder (host/engines/daemons.py)
}
# Those that stand for mpirun's options about mapping, binding and what is printed (`mpirun --help`, 4.1).
OF_OPTIONS = (
    r"rmaps_\w+|hwloc_base_(bind|binding|cpu|report|use)\w*"
    r"|(orte|prte)_(debug|debug_daemons|leave_session_attached|report_bindings|report_events|report_launch_progress"
    r"|report_child_jobs_separately|tag_output|timestamp_output|output_filename|xml_output|execute_quiet"
    r"|display_alloc|display_devel_alloc|enable_recovery|max_restarts|enable_instant_on_support|use_regexp)"
)
# Prefixes of environment variables that set parameters, which mpirun hands on to its daemons.
IN_ENVIRONMENT = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")


def words_of(command: str) -> list[str]:
    """The daemon's argv, from the command that mpirun gives its remote shell. Raises ValueError on an open quote."""
    inner = re.fullmatch(PROFILE, command, re.DOTALL)
    return shlex.split(re.sub(f"^{FOLDERS}", "", inner[1] if inner else command))


def set_here(mpirun: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The parameters that the job's own command line of mpirun sets, and this host's environment. The former come first."""
    of_environ = {
        name.removeprefix(prefix): value
        for prefix in IN_ENVIRONMENT
        for name, value in environ.items()
        if name.startswith(prefix)
    }
    of_command = {name: value for (word, name), value in zip(pairwise(mpirun), mpirun[2:], strict=False) if word in MCA}
    return of_environ | of_command


def accepted(options: Sequence[str], own: Mapping[str, str]) -> list[str]:
    """The options of a daemon that this host may start, with this host's value for each parameter in `own`.

    Raises UserError for one that neither mpirun adds by itself nor this job's command line sets.
    """
    return [word for each in _accepted(options, own) for word in each]


def _accepted(options: Sequence[str], own: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    waiting = iter(options)
    for word in waiting:
        if word in FLAGS:
            yield (word,)
            continue
        name, value = next(waiting, ""), next(waiting, "")
        if word not in MCA:
            raise _refused(word)
        if name in own:
            yield word, name, own[name]
        elif re.fullmatch(OF_OPTIONS, name) or any(
            re.fullmatch(known, name) and re.fullmatch(form, value) for known, form in ITS_OWN.items()
        ):
            yield word, name, value
        else:
            raise _refused(f"{name} {value}".strip())


def _refused(what: str) -> UserError:
    return UserError(
        "mpirun's daemon", f"the leader asks for {what[:200]!r}", fix="set it with --mca among mpirun's options of the job",
        allowed="what mpirun adds by itself, and the parameters that the job's mpirun options or environment set",
    )  # fmt: skip
