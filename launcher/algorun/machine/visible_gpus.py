"""What CUDA_VISIBLE_DEVICES leaves of a machine's GPUs, by CUDA's rules. Pure.

CUDA takes numbers from 0 and UUIDs, also shortened ones; it stops at the first entry that it does not know, and takes
nothing at all where an entry is repeated. Of MIG slices a process gets the first alone (NVIDIA's MIG user guide).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .nvidia import Nvidia

VARIABLE = "CUDA_VISIBLE_DEVICES"
GIVEN = "NVIDIA_VISIBLE_DEVICES"  # what NVIDIA's container toolkit gives to a container
GIVEN_NONE = ("", "none", "void")
NONE_ON_PURPOSE = ("", "none", "void", "nodevfiles")  # the last is what Slurm sets for a job without GPUs


@dataclass(frozen=True, slots=True)
class Visible:
    """`count` GPUs can be seen of those that are there.

    `hidden`: `variable` says that none shall be. `wrong` is the first entry that names no GPU of this machine, "" where
    all do; CUDA ignores it and all that follow, without a word.
    """

    count: int = 0
    value: str | None = None
    hidden: bool = False
    wrong: str = ""
    twice: bool = False  # `wrong` names a GPU that an earlier entry has named
    variable: str = VARIABLE


def look(environ: Mapping[str, str], found: Nvidia) -> Visible:
    """What this environment leaves of the GPUs that were found.

    A container that was given none may see the device files all the same, as a privileged one does, but not the driver's
    library. Where that is there the word means nothing: CDI sets `void` and gives GPUs.
    """
    given = environ.get(GIVEN, "all")
    if found.devices and not found.library and given.strip().lower() in GIVEN_NONE:
        return Visible(0, given, hidden=True, variable=GIVEN)
    return visible(environ.get(VARIABLE), found.devices, found.uuids)


def visible(value: str | None, devices: int, uuids: Sequence[str]) -> Visible:
    """`devices` GPUs are there; `uuids` holds those of all of them, or is empty where they are not known."""
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


def sliced(seen: Visible, found: Nvidia) -> tuple[int, ...]:
    """The MIG slices of each GPU that can be seen and is divided."""
    at: Sequence[int] = range(found.devices)
    if seen.variable == VARIABLE and seen.value is not None:
        places = [_place(entry, found) for entry in _before(seen.wrong, named(seen.value))]
        at = sorted({place for some in places for place in some})
    return tuple(found.slices[place] for place in at if place < len(found.slices) and found.slices[place])


def _place(entry: str, found: Nvidia) -> Sequence[int]:
    """Where a GPU stands among this machine's; all places where an entry does not tell."""
    if number := re.match(r"\+?(\d+)", entry):
        return [int(number[1])]
    places = [place for place, uuid in enumerate(found.uuids) if uuid.startswith(entry)]
    return places[:1] or range(found.devices)


def _before(wrong: str, entries: tuple[str, ...]) -> tuple[str, ...]:
    return entries[: entries.index(wrong)] if wrong else entries


def ignored(seen: Visible) -> tuple[str, ...]:
    """The first wrong entry and all that follow it, as they are written; none where all name GPUs."""
    entries = named(seen.value or "")
    return entries[entries.index(seen.wrong) :] if seen.wrong else ()


def named(value: str) -> tuple[str, ...]:
    """The entries of a value as they are written, up to one that names none on purpose."""
    entries = [entry.strip() for entry in value.split(",")]
    end = next((at for at, entry in enumerate(entries) if _is_none(entry)), len(entries))
    return tuple(entries[:end])


def _is_none(entry: str) -> bool:
    return entry.startswith("-") or entry.lower() in NONE_ON_PURPOSE


def _count(chosen: Sequence[str]) -> int:
    return 1 if any(each.startswith("MIG-") for each in chosen) else len(chosen)


def _named(entry: str, devices: int, uuids: Sequence[str]) -> str | None:
    """What an entry names, in one way of writing; None for no GPU of this machine."""
    if entry.startswith("GPU-"):
        if not uuids:
            return entry
        return next((uuid for uuid in uuids if uuid.startswith(entry)), None)
    if entry.startswith("MIG-"):  # the kernel does not list their UUIDs
        return entry
    number = re.match(r"\+?(\d+)", entry)  # as C's strtoul reads it: 1gpu is 1
    return str(int(number[1])) if number and int(number[1]) < devices else None
