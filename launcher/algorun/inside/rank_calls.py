"""Runs in a process of a rank that uses torch.distributed: writes its last collective calls into a file when asked.

The calls come from torch's flight recorder. A thread waits in read() on a named pipe until the supervisor asks
(host/ranks/rank_calls.py): it needs no time and no GIL before that, and the process ends without it. A signal would not do:
Python runs handlers in the main thread, which is in a collective while the rank hangs.

As in rank_steps, no module is imported that a file of the user could replace, and no exception reaches the program.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False  # typing itself must not be imported here
if TYPE_CHECKING:
    from typing import Any

    Entry = dict[str, Any]  # of torch's recorder, which has no types

MOST_CALLS = 128  # of all groups
BEFORE, AFTER = 8, 8  # of each group: calls before the first one that has not completed, and from it on
MOST_FRAMES = 16  # of one call, innermost first
MOST_MEMBERS = 64  # of a group whose ranks are not evenly spaced
LONGEST = 300  # characters of one text
RECORDERS = ("_dump_nccl_trace", "_dump_fr_trace")  # of GPUs; of gloo, since torch 2.13


def offer() -> None:
    """Starts the thread of this process. Does nothing where torch.distributed is not in use or records nothing."""
    try:
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized() or not _recorders():
            return
        path = f"{os.environ['ALGORUN_RUN_DIR']}/calls-{os.getpid()}"
        os.mkfifo(f"{path}.ask", 0o600)
        pipe = os.open(f"{path}.ask", os.O_RDWR | os.O_CLOEXEC)  # with a writer of its own, so a read never ends early
        with open(f"{path}.limit", "w", encoding="ascii") as file:
            file.write(str(_limit_s()))
        _thread.start_new_thread(_answer, (pipe, path))
    except Exception:
        pass  # then a hang is judged by stacks alone


def _limit_s() -> float:
    """After how many seconds the first collective call of this process would time out: of all its groups so far."""
    torch, world = sys.modules["torch"], sys.modules["torch.distributed.distributed_c10d"]._world
    limits = [
        group._get_backend(device).options._timeout.total_seconds()
        for group in list(world.pg_map)
        for device in group._device_types
        if device.type == "cpu" or torch.cuda.is_initialized()
    ]
    return min(limits, default=0.0)


def _recorders() -> list[Any]:  # functions of a compiled module
    compiled = sys.modules.get("torch._C._distributed_c10d")
    return [getattr(compiled, name) for name in RECORDERS if hasattr(compiled, name)]


def _answer(pipe: int, path: str) -> None:
    pid = os.getpid()
    while os.read(pipe, 1) and os.getpid() == pid:
        try:
            text = _json({"rank": sys.modules["torch.distributed"].get_rank(), "calls": _calls()})
            with open(f"{path}.new", "w", encoding="ascii") as file:
                file.write(text)
            os.rename(f"{path}.new", path)
        except Exception:
            pass


def _calls() -> list[dict[str, object]]:
    """The last collective calls, oldest first; each as host/ranks/rank_calls.py reads it.

    A program on a GPU queues calls long before they run, so those of a group lie around the first that has not completed.
    """
    loads, members = sys.modules["_pickle"].loads, _members()
    kept: list[dict[str, object]] = []
    for dump in _recorders():
        of_group: dict[str, list[Entry]] = {}
        for entry in sorted(loads(dump()).get("entries", []), key=lambda each: each["record_id"]):
            if not entry["is_p2p"]:
                backend = str(entry["profiling_name"]).rpartition(":")[0]
                # A group of CPUs and GPUs has two backends, which count on their own.
                of_group.setdefault(f"{backend}:{entry['process_group'][0]}", []).append(entry)
        for group, entries in of_group.items():
            kept += [_call(group, entry, members) for entry in _last(group, entries)]
    return sorted(kept, key=lambda each: int(str(each["at"])))[-MOST_CALLS:]


def _last(group: str, entries: list[Entry]) -> list[Entry]:
    states = [_state(group, entry) for entry in entries]
    waiting = next((n for n, state in enumerate(states) if state and state != "completed"), len(entries))
    first = max(0, waiting - BEFORE)
    return entries[first : first + BEFORE + AFTER] if any(states) else entries[-BEFORE - AFTER :]


def _state(group: str, entry: Entry) -> str:
    """scheduled, started or completed; "" of gloo, whose calls stay `scheduled` for ever."""
    return "" if group.startswith("gloo:") else str(entry.get("state") or "")


def _call(group: str, entry: Entry, members: dict[str, str]) -> dict[str, object]:
    return {
        "group": group[:LONGEST],
        "members": members.get(str(entry["process_group"][0]), ""),
        "number": entry["collective_seq_id"],
        "operation": str(entry["profiling_name"]).rpartition(":")[2][:LONGEST],
        "state": _state(group, entry)[:LONGEST],
        "at": entry["time_created_ns"],
        "shapes": str(entry["input_sizes"])[:LONGEST],
        "dtypes": " ".join(map(str, entry["input_dtypes"][:8]))[:LONGEST],
        "frames": [
            [str(f["filename"])[-LONGEST:], f["line"], str(f["name"])[-LONGEST:]]
            for f in (entry.get("frames") or [])[:MOST_FRAMES]
        ],
    }


def _members() -> dict[str, str]:
    """The ranks of each group, such as `0-7`, `1-13:4` (every 4th) or `0,2,3`; without those that would be long."""
    found = {}
    try:
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        for group, ranks in list(world.pg_group_ranks.items()):
            found[str(world.pg_names[group])] = _ranges(sorted(ranks))
    except Exception:
        pass
    return found


def _ranges(ranks: list[int]) -> str:
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")
    return ",".join(map(str, ranks)) if len(ranks) <= MOST_MEMBERS else ""


def _json(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(key)}:{_json(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_json, value)) + "]"
    if isinstance(value, int):
        return str(int(value))
    plain = (c if " " <= c <= "~" and c not in '"\\' else f"\\u{min(ord(c), 0xFFFD):04x}" for c in str(value))
    return '"' + "".join(plain) + '"'
