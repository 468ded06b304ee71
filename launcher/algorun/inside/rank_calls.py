"""Runs in a process of a rank that uses torch.distributed: writes its last collective calls into a file when asked.

The calls come from torch's flight recorder. A thread waits in read() on a named pipe until the supervisor asks
(host/rank_calls.py): it needs no time and no GIL before that, and the process ends without it. A signal would not do:
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

MOST_CALLS = 128  # newest, of all groups
MOST_OF_GROUP = 32
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
        _thread.start_new_thread(_answer, (pipe, path))
    except Exception:
        pass  # then a hang is judged by stacks alone


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
    """The newest collective calls, oldest first; each as host/rank_calls.py reads it."""
    loads, members = sys.modules["_pickle"].loads, _members()
    kept: list[dict[str, object]] = []
    for dump in _recorders():
        entries = loads(dump()).get("entries", [])
        of_group: dict[str, int] = {}
        for entry in sorted(entries, key=lambda each: -each["record_id"]):
            backend, _, operation = str(entry["profiling_name"]).rpartition(":")
            name = str(entry["process_group"][0])
            group = f"{backend}:{name}"  # a group of CPUs and GPUs has two backends, which count on their own
            if entry["is_p2p"] or len(kept) >= MOST_CALLS or of_group.get(group, 0) >= MOST_OF_GROUP:
                continue
            of_group[group] = of_group.get(group, 0) + 1
            kept.append(
                {
                    "group": group[:LONGEST],
                    "members": members.get(name, ""),
                    "number": entry["collective_seq_id"],
                    "operation": operation[:LONGEST],
                    "at": entry["time_created_ns"],
                    "shapes": str(entry["input_sizes"])[:LONGEST],
                    "dtypes": " ".join(map(str, entry["input_dtypes"][:8]))[:LONGEST],
                    "frames": [
                        [str(f["filename"])[-LONGEST:], f["line"], str(f["name"])[-LONGEST:]]
                        for f in (entry.get("frames") or [])[:MOST_FRAMES]
                    ],
                }
            )
    return sorted(kept, key=lambda each: int(str(each["at"])))


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
