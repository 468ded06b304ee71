"""Options of torchrun that people type at algorun, and what they are called here."""

from __future__ import annotations

from collections.abc import Container, Sequence

HERE = {"--nnodes": "--hosts", "--nproc-per-node": "--slots", "--max-restarts": "--restarts"}
# Hosts find each other by the job's own files.
NOT_NEEDED = frozenset(
    ("--standalone", "--node-rank", "--master-addr", "--master-port", "--rdzv-endpoint", "--rdzv-backend", "--rdzv-id")
)


def fix(unknown: Sequence[str], known: Container[str]) -> str:
    """What to type in place of the first unknown word of a command line. "" if it is no option of torchrun.

    `known`: the command's own options.
    """
    name = unknown[0].split("=")[0].replace("_", "-")
    if HERE.get(name) in known:
        return f"{HERE[name]} N in place of torchrun's {name}"
    if name in HERE or name in NOT_NEEDED:
        return f"leave out torchrun's {name}: a job knows its hosts"
    return ""
