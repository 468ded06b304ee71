"""The roll call before a process group is made: every rank reports its device; all ranks continue, or all raise the same error.

Without it, ranks on CPUs would make a group for Gloo and ranks on GPUs one for NCCL, and wait for each other for ever.
"""

import contextlib
import datetime
import itertools
import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import torch.distributed as dist

from algorun_train.common.errors import UserError

MOST_HOSTS = 4  # named in an error
HEARD_S = 10.0  # rank 0 may host the store: the longest wait for the others to read the error before it ends
PAUSE_S = 0.05  # between two looks for the verdict or a newer call


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """One rank's answer. `gpu` is the UUID of its GPU, or "" if ranks may share one. `error` says why it has no device."""

    rank: int
    host: str
    device: str
    gpu: str = ""
    error: str = ""


def host_name(environ: Mapping[str, str] = os.environ) -> str:
    """SageMaker's name of this host, else its own host name."""
    return environ.get("SM_CURRENT_HOST") or socket.gethostname()


def one_gpu_each(backends: str, environ: Mapping[str, str]) -> bool:
    """Whether each rank of a host needs a GPU of its own: NCCL refuses a shared one, Gloo does not.

    `backends` has torch's form, such as `cpu:gloo,cuda:nccl`. False if NCCL_HOSTID is set: NCCL then decides by it, not by
    the host, which ranks are on one host.
    """
    shared = environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") not in ("", "0")  # NCCL 2.30 and later
    return "cuda:nccl" in backends.split(",") and not shared and not environ.get("NCCL_HOSTID")


def disagreement(places: Iterable[RankAnswer]) -> str:
    """The error that keeps these ranks from training together; "" if there is none. Pure."""
    ranks = sorted(places, key=lambda place: place.rank)
    if refused := [place for place in ranks if place.error]:
        return _errors(refused)
    kinds = {name: [each for each in ranks if each.device.partition(":")[0] == name] for name in ("cuda", "cpu")}
    if kinds["cuda"] and kinds["cpu"]:
        return (
            f"ranks have different devices: GPUs on {_hosts(kinds['cuda'])}; the CPU on {_hosts(kinds['cpu'])}; allowed: one "
            f"kind for all ranks; fix: `algorun doctor` on {kinds['cpu'][0].host} tells why it has none, or "
            "CUDA_VISIBLE_DEVICES= (empty) on all hosts"
        )
    taken: dict[tuple[str, str], RankAnswer] = {}
    for place in ranks:
        if place.gpu and (other := taken.setdefault((place.host, place.gpu), place)) is not place:
            return (
                f"ranks {other.rank} and {place.rank} on {place.host} have the same GPU ({place.gpu}); allowed: a GPU for "
                "each rank; fix: fewer ranks per host, or more GPUs in CUDA_VISIBLE_DEVICES"
            )
    return ""


def _errors(refused: list[RankAnswer]) -> str:
    """The error of the first refused rank, the ranks with the same error, and the ranks with another one."""
    first = refused[0].error
    others = [place for place in refused if place.error != first]
    text = f"{_hosts(place for place in refused if place.error == first)}: {first}"
    if not others:
        return text
    have = "1 more rank has another error" if len(others) == 1 else f"{len(others)} more ranks have other errors"
    return f"{text}; {have}: {_hosts(others)}"


def _hosts(places: Iterable[RankAnswer]) -> str:
    """Hosts with their ranks: `algo-1 (ranks 0 to 7), algo-2 (rank 8)`."""
    found: list[str] = []
    for host, group in itertools.groupby(places, key=lambda place: place.host):
        ranks = [place.rank for place in group]
        found.append(f"{host} (rank{'s' * (len(ranks) > 1)} {_numbers(ranks)})")
    more = len(found) - MOST_HOSTS
    return ", ".join(found) if more <= 0 else f"{', '.join(found[:MOST_HOSTS])} and {more} more"


def _numbers(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))


def agree(store: dist.Store, size: int, mine: RankAnswer) -> None:
    """Holds the roll call. Call it on all `size` ranks. Raises UserError, the same on all ranks, if they cannot train together.

    Waits for missing ranks up to the store's own time-out. The store may still hold answers of earlier ranks that
    torchrun has ended, under the same TORCHELASTIC_RESTART_COUNT. So rank 0 gives each roll call a new name, and its
    verdict counts only for ranks that have answered that call.
    """
    ours = dist.PrefixStore("algorun-devices", store)
    error = _ask(ours, size, mine) if mine.rank == 0 else _answer(ours, mine, store.timeout)  # type: ignore[attr-defined]  # torch's stub lacks it
    if error:
        raise UserError(error)


def _ask(ours: dist.Store, size: int, mine: RankAnswer) -> str:
    """Rank 0 reads all answers, decides, and publishes the verdict. Returns the error, or ""."""
    call = uuid.uuid4().hex
    ours.set("call", call)
    answers = [json.loads(ours.get(f"{call}/{rank}")) for rank in range(1, size)]
    error = disagreement([mine, *(RankAnswer(**answer["place"]) for answer in answers)])
    ours.set(f"{call}/verdict", json.dumps({"error": error, "heard": [answer["by"] for answer in answers]}))
    if error and size > 1:
        with contextlib.suppress(RuntimeError):  # a rank that has ended will not read it
            ours.wait([f"{call}/heard {rank}" for rank in range(1, size)], datetime.timedelta(seconds=HEARD_S))
    return error


def _answer(ours: dist.Store, mine: RankAnswer, patience: datetime.timedelta) -> str:
    """Another rank answers the latest call until the verdict counts its answer. Returns the error, or ""."""
    by, answered = uuid.uuid4().hex, ""
    until = time.monotonic() + patience.total_seconds()
    while time.monotonic() < until:
        call = ours.get("call").decode()
        if call != answered:
            ours.set(f"{call}/{mine.rank}", json.dumps({"by": by, "place": asdict(mine)}))
            answered = call
        if ours.check([f"{call}/verdict"]):
            verdict = json.loads(ours.get(f"{call}/verdict"))
            if by in verdict["heard"]:
                ours.set(f"{call}/heard {mine.rank}", "1")
                return str(verdict["error"])
        time.sleep(PAUSE_S)  # `store.wait` could miss a newer call, and torch prints a warning for each time-out
    waited_ms = patience / datetime.timedelta(milliseconds=1)
    raise dist.DistStoreError(f"wait timeout after {waited_ms:.0f}ms, keys: /algorun-devices/{answered}/verdict")
