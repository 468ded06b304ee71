"""Which GPUs each simulated host sees. Each GPU goes to one host: NCCL refuses ranks that share one ("Duplicate GPU")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from algorun.common.errors import UserError
from algorun.machine import nvidia, preflight_gpus
from algorun.machine import visible_gpus as visible
from algorun.machine.visible_gpus import VARIABLE

ON_CPU = "the simulated hosts compute on the CPU"
SLICES = "a process sees only one MIG slice, and NCCL cannot tell two slices of a GPU apart"


class GivenGpus(NamedTuple):
    """The GPUs of the simulated hosts."""

    visible: list[str | None]  # CUDA_VISIBLE_DEVICES of each host; None leaves it unset
    why_cpu: str = ""  # why the hosts compute on the CPU, "" if they use GPUs
    warning: str = ""  # names entries of this process's CUDA_VISIBLE_DEVICES that CUDA ignores


def give_out(
    environ: Mapping[str, str],
    hosts: int,
    slots: int,
    *,
    whole_hosts: bool = False,
    cpu_torch: bool = False,
    root: str = "",
) -> GivenGpus:
    """A GPU of its own for every rank. If there are too few GPUs, all ranks compute on the CPU.

    `whole_hosts`: there is one process per host, and each host gets an equal share of all GPUs. `cpu_torch`: the program
    uses a torch without CUDA. `root` as in probe. Raises UserError if CUDA_VISIBLE_DEVICES names GPUs, but none of this
    machine's.
    """
    found, value = nvidia.look(environ, root), environ.get(VARIABLE)
    seen = visible.look(environ, found)
    if not found.devices:
        return GivenGpus([None] * hosts)
    if seen.hidden:
        return GivenGpus([""] * hosts)
    if cpu_torch:
        return GivenGpus([""] * hosts, f"{ON_CPU}: torch is built without CUDA")
    names = tuple(map(str, range(found.devices))) if value is None else visible.named(value)
    warning = ""
    if seen.wrong:
        _refuse_none_left(seen, found.devices)
        names = names[: names.index(seen.wrong)]
        warning = "; ".join(map(str, preflight_gpus.choice(seen, found.devices)))
    sliced = visible.sliced(seen, found) or any(name.startswith("MIG-") for name in names)
    if sliced and hosts * slots > 1:
        return GivenGpus([""] * hosts, f"{ON_CPU}: {SLICES}", warning)
    if len(names) < hosts * slots:
        need = f"{_many(hosts, 'host')} x {_many(slots, 'rank')} need {_many(hosts * slots, 'GPU')}"
        are, source = "is" if len(names) == 1 else "are", "/dev/nvidia*" if value is None else VARIABLE
        return GivenGpus([""] * hosts, f"{ON_CPU}: {need}, but there {are} {len(names)} ({source})", warning)
    each = len(names) // hosts if whole_hosts else slots
    return GivenGpus([",".join(names[host * each : (host + 1) * each]) for host in range(hosts)], warning=warning)


def _refuse_none_left(seen: visible.Visible, devices: int) -> None:
    """Raises UserError if no GPU is left once CUDA has ignored the wrong entry and all entries after it."""
    if not seen.count:
        what = "names a GPU twice" if seen.twice else f"names {seen.wrong!r}, which is not a GPU of this machine"
        raise UserError(
            VARIABLE,
            f"{seen.value!r} {what}",
            allowed="0" if devices == 1 else f"0 to {devices - 1}, or UUIDs of nvidia-smi -L, each once",
            fix="unset it for all GPUs, or leave it empty for the CPU",
        )


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
