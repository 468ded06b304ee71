"""Which GPUs CUDA_VISIBLE_DEVICES lets a process see, by CUDA's rules. Pure.

An entry is a number from 0 or a UUID, whole or its beginning. CUDA ignores the first unknown entry and all entries after
it. If an entry is repeated, a process sees no GPU at all. Of several MIG slices it sees only the first (NVIDIA's MIG
user guide).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from algorun.common.fast_dataclasses import dataclass

from .nvidia import Nvidia

VARIABLE = "CUDA_VISIBLE_DEVICES"
GIVEN = "NVIDIA_VISIBLE_DEVICES"  # the GPUs that NVIDIA's container toolkit gives to a container
GIVEN_NONE = ("", "none", "void")
NONE_ON_PURPOSE = ("", "none", "void", "nodevfiles")  # Slurm sets the last for a job without GPUs


@dataclass(frozen=True, slots=True)
class Visible:
    """The GPUs that a process can see, and the variable that decides it."""

    count: int = 0  # number of GPUs
    value: str | None = None  # the variable's value, None if unset
    hidden: bool = False  # the user wants no GPU to be seen
    wrong: str = ""  # the first entry that is not a GPU of this machine; CUDA silently ignores it and all that follow
    twice: bool = False  # `wrong` is a GPU that an earlier entry names already
    variable: str = VARIABLE


def look(environ: Mapping[str, str], found: Nvidia) -> Visible:
    """The GPUs of `found` that a process with this environment can see.

    A privileged container sees the device files even if NVIDIA_VISIBLE_DEVICES gives it no GPU; it then lacks the
    driver's library. If the library is there, the variable is ignored: CDI sets it to `void` and gives GPUs.
    """
    given = environ.get(GIVEN, "all")
    if found.devices and not found.library and given.strip().lower() in GIVEN_NONE:
        return Visible(0, given, hidden=True, variable=GIVEN)
    return visible(environ.get(VARIABLE), found.devices, found.uuids)


def visible(value: str | None, devices: int, uuids: Sequence[str]) -> Visible:
    """The GPUs that CUDA_VISIBLE_DEVICES=`value` shows, of `devices` GPUs. `uuids`: of all of them, or empty."""
    if value is None or devices == 0:
        return Visible(devices, value)
    entries = named(value)
    if not entries:
        return Visible(0, value, hidden=True)
    chosen: list[str] = []
    for entry in entries:
        found = _named(entry, devices, uuids)
        if found is None:
            return Visible(_count(chosen), value, wrong=entry)
        if found in chosen:
            return Visible(0, value, wrong=entry, twice=True)
        chosen.append(found)
    return Visible(_count(chosen), value)


def places(value: str | None, uuids: Sequence[str]) -> list[int]:
    """The places, among all GPUs of the machine with these UUIDs, of those that CUDA_VISIBLE_DEVICES=`value` names whole."""
    if value is None:
        return list(range(len(uuids)))
    found = [_named(entry, len(uuids), uuids) for entry in named(value)]
    chosen = [int(each) if each.isdigit() else uuids.index(each) for each in found if each and each[:4] != "MIG-"]
    return sorted(set(chosen))


def sliced(seen: Visible, found: Nvidia) -> tuple[int, ...]:
    """The number of MIG slices of each visible GPU that is divided."""
    at: Sequence[int] = range(found.devices)
    if seen.variable == VARIABLE and seen.value is not None:
        places = [_place(entry, found) for entry in _before(seen.wrong, named(seen.value))]
        at = sorted({place for some in places for place in some})
    return tuple(found.slices[place] for place in at if place < len(found.slices) and found.slices[place])


def _place(entry: str, found: Nvidia) -> Sequence[int]:
    """The indices of the GPUs that an entry may mean: one, or all if its UUID is unknown."""
    if number := re.match(r"\+?(\d+)", entry):
        return [int(number[1])]
    places = [place for place, uuid in enumerate(found.uuids) if uuid.startswith(entry)]
    return places[:1] or range(found.devices)


def _before(wrong: str, entries: tuple[str, ...]) -> tuple[str, ...]:
    return entries[: entries.index(wrong)] if wrong else entries


def ignored(seen: Visible) -> tuple[str, ...]:
    """The first wrong entry and all entries after it; none if every entry names a GPU."""
    entries = named(seen.value or "")
    return entries[entries.index(seen.wrong) :] if seen.wrong else ()


def named(value: str) -> tuple[str, ...]:
    """The entries of a value, up to the first that means "no GPU" (NONE_ON_PURPOSE, or a negative number)."""
    entries = [entry.strip() for entry in value.split(",")]
    end = next((at for at, entry in enumerate(entries) if _is_none(entry)), len(entries))
    return tuple(entries[:end])


def _is_none(entry: str) -> bool:
    return entry.startswith("-") or entry.lower() in NONE_ON_PURPOSE


def _count(chosen: Sequence[str]) -> int:
    return 1 if any(each.startswith("MIG-") for each in chosen) else len(chosen)


def _named(entry: str, devices: int, uuids: Sequence[str]) -> str | None:
    """The GPU that an entry names, as its index or UUID; None if it is not a GPU of this machine."""
    if entry.startswith("GPU-"):
        if not uuids:
            return entry
        return next((uuid for uuid in uuids if uuid.startswith(entry)), None)
    if entry.startswith("MIG-"):  # the kernel does not list their UUIDs
        return entry
    number = re.match(r"\+?(\d+)", entry)  # CUDA uses C's strtoul: "1gpu" is 1
    return str(int(number[1])) if number and int(number[1]) < devices else None
