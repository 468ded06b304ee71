"""Repairs the command line with which the MPI driver of the SageMaker SDK v3 (3.27.0) calls mpirun, then runs it.

Three faults of that driver, all measured:

- It names the interface of resourceconfig.json, which the SDK's local mode always calls `ethwe`. No container has one,
  and every MPI job died of it. Here: an interface that does not exist becomes that of the default route.
- `-np` is the number of processes of one host, so that two hosts with one process each ran one rank and reported
  success. Here: that number for every host.
- It passes on PATH, LD_LIBRARY_PATH and AWS's credentials only, so that ranks on other hosts, which an ssh session
  starts, lack the job's environment. Here: `-x NAME` for every variable that is not the host's own. The names alone are
  on the command line; Open MPI 4.1 sends the values to its daemons in its launch message, whatever they hold.

A command line without these faults, such as a later SDK's, is left as it is.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from algorun.machine.probe import default_interface

MPIRUN = "/usr/bin/mpirun"
RESOURCES = Path("/opt/ml/input/config/resourceconfig.json")
INTERFACE_PARAMETERS = ("btl_tcp_if_include", "oob_tcp_if_include")

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# What a host, its session or its processes have for themselves: on another host it would be wrong.
OWN = frozenset(
    (
        *(
            "PATH",
            "HOME",
            "HOSTNAME",
            "HOST",
            "PWD",
            "OLDPWD",
            "SHLVL",
            "SHELL",
            "TERM",
            "USER",
            "LOGNAME",
            "MAIL",
            "_",
        ),
        *("TMPDIR", "TMP", "TEMP", "XDG_RUNTIME_DIR", "DISPLAY", "CUDA_VISIBLE_DEVICES", "CURRENT_HOST"),
        *("SM_CURRENT_HOST", "SM_CURRENT_HOST_RANK", "SM_CURRENT_INSTANCE_TYPE", "SM_CURRENT_INSTANCE_GROUP"),
        *("SM_NUM_CPUS", "SM_NUM_GPUS", "SM_NUM_NEURONS", "SM_NETWORK_INTERFACE_NAME"),
        *("SM_RESOURCE_CONFIG", "SM_TRAINING_ENV"),  # which hold the current host
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    )
)
OWN_BEGINNINGS = (
    "SSH_",
    "OMPI_",
    "PMIX_",
    "PRTE_",
    "ORTE_",
    "HWLOC_",
    "NVIDIA_",
    "AWS_CONTAINER_",
    "ECS_",
    "BASH_FUNC_",
)
ENV_LIST = "mca_base_env_list"  # another way to say the same, which mpirun refuses beside -x


def slots(hosts: str) -> list[int]:
    """The slots of `--host algo-1:2,algo-2`: [2, 1]."""
    return [int(host.partition(":")[2] or 1) for host in hosts.split(",")]


def with_all_hosts(argv: Sequence[str]) -> list[str]:
    """The driver's own `--host LIST -np N` with N for every host. `-np` of the user, which comes later, stays."""
    fixed = list(argv)
    if fixed[:1] != ["--host"] or fixed[2:3] != ["-np"] or len(fixed) < 4:
        return fixed
    try:
        each = slots(fixed[1])
    except ValueError:  # not the driver's own list
        return fixed
    if len(each) > 1 and all(fixed[3] == str(count) for count in each):
        fixed[3] = str(sum(each))
    return fixed


def with_interface(argv: Sequence[str], named: str, interfaces: Collection[str], default: str) -> list[str]:
    """`named`, the interface of the job's description, replaced by `default` where this machine has none such."""
    if not named or named in interfaces or not default:
        return list(argv)
    fixed = list(argv)
    for at, word in enumerate(argv):
        if word == named and at and argv[at - 1] in INTERFACE_PARAMETERS:
            fixed[at] = default
        elif word == f"NCCL_SOCKET_IFNAME={named}" and at and argv[at - 1] == "-x":
            fixed[at] = f"NCCL_SOCKET_IFNAME={default}"
    return fixed


def forwarded(argv: Sequence[str], names: Collection[str]) -> list[str]:
    """`-x NAME` for those of a job's environment variables that ranks on other hosts would lack."""
    if any(ENV_LIST in word for word in argv) or f"OMPI_MCA_{ENV_LIST}" in names:
        return []
    said = {argv[at + 1].partition("=")[0] for at, word in enumerate(argv[:-1]) if word == "-x"}
    found = [
        name for name in sorted(set(names) - OWN - said) if NAME.fullmatch(name) and not name.startswith(OWN_BEGINNINGS)
    ]
    return [word for name in found for word in ("-x", name)]


def main() -> int:
    described = json.loads(RESOURCES.read_text())
    given = sys.argv[1:]
    argv = with_interface(
        with_all_hosts(given),
        str(described.get("network_interface_name", "")),
        os.listdir("/sys/class/net"),
        default_interface(),
    )
    for before, after in zip(given, argv, strict=True):
        if before != after:
            print(f"algorun: mpirun of the SDK's driver: {before} becomes {after}", flush=True)
    more = forwarded(argv, os.environ) if len(described.get("hosts", [])) > 1 else []
    if more:
        print(f"algorun: mpirun of the SDK's driver: {len(more) // 2} variables of the job go to all hosts", flush=True)
    # As the driver called it: by name, because a path would mean `--prefix`.
    os.execv(MPIRUN, ["mpirun", *more, *argv])


if __name__ == "__main__":
    sys.exit(main())
