"""Token files: each host tokenizes its files once, and what hosts have alone they give to the others.

A token file is int32, memory-mapped. Its table says which file gave which tokens. The tokens of a corpus are in the order of
(name, checksum), whichever host had a file; so a sample has the same number however files are spread over hosts.
"""

import hashlib
import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorun_train.common.errors import UserError
from algorun_train.common.files import aside, write, write_json
from algorun_train.common.json_text import loads
from algorun_train.ranks.communicator import Communicator

from .document import BadDocument
from .left_out import LeftOut
from .splits import refuse_splits
from .token_encoding import Encoder, Tokens
from .token_files import checksum, documents, listed

FORMAT = "5"  # change it when the same files give other tokens
EVERY_S = 1.0  # how often ranks tell each other how far they are
SAY_S = 10.0  # seconds between progress lines
NO_PROGRESS_S = 600.0  # without progress on any host for so long, the job ends
PIECE = 16 * 2**20  # tokens per broadcast
NAMED = 5  # skipped documents that the log names


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One file of a corpus and the number of its tokens."""

    name: str
    sha256: str
    tokens: int


class _StoppedError(Exception):
    """Another host could not tokenize its files."""


@dataclass(slots=True)
class CorpusWork:
    """Work of this host in a thread of its own, which writes to `place`. `done` of `total` bytes; it ends early once `stop` is set.
    `skip_bad`: leave out documents that cannot be used; `skipped` says why, and how many documents each error is about. `notes`
    counts documents of which something is lost, `left_out` the files that are not read."""

    place: Path
    skip_bad: bool
    done: int = 0
    total: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    result: list[CorpusFile] = field(default_factory=list)
    skipped: list[tuple[str, int]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    notes: Counter[str] = field(default_factory=Counter)


def folder() -> Path:
    """Where this host keeps token files: below TMPDIR, only for this user. Raises UserError if it cannot be used."""
    path = Path(tempfile.gettempdir()) / f"algorun-tokens-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            raise UserError(f"{path} belongs to someone else; fix: remove it, or set TMPDIR to another folder")
    except OSError as error:
        raise UserError(f"{path} cannot be made: {error.strerror}; fix: set TMPDIR to a folder with space") from None
    return path


def corpus(
    channel: str, root: Path, encoder: Encoder, comm: Communicator, skip_bad: bool = False
) -> tuple[Tokens, list[CorpusFile]]:
    """The tokens of a channel, memory-mapped, and its files. The same on all ranks. Call it on all ranks.

    One rank of each host tokenizes; the others wait for as long as any host makes progress. With `skip_bad` documents that
    cannot be used are left out and named in the log. Raises UserError, the same on all ranks, for other ones and for files
    that cannot be used.
    """
    place = comm.on_all(folder)
    work = CorpusWork(place, skip_bad)
    own = _together(work, channel, root, encoder, comm)
    # Hosts with the same files report the same. They report what is named here and no more: a file may have 100,000 bad lines.
    count, first = sum(documents for _, documents in work.skipped), sorted(error for error, _ in work.skipped)[:NAMED]
    told = {(count, tuple(first)) for count, first in comm.gather((count, first))}
    if skipped := sum(count for count, _ in told):
        comm.say(f"skipped: {skipped} documents of channel '{channel}' do not count")
    for error in sorted({error for _, first in told for error in first})[:NAMED]:
        comm.say(f"skipped: {error.partition('; allowed:')[0].partition('; fix:')[0]}")
    noted = set(comm.gather(tuple(sorted(work.notes.items()))))  # as above, once for the same files
    for note, count in sorted(sum((Counter(dict(each)) for each in noted), Counter[str]()).items()):
        comm.say(f"channel '{channel}': {count} documents {note}")
    host = comm.rank - comm.world.local_rank
    hosts = [row for row in comm.gather((host, own, work.left_out)) if row[1]]
    tables = {at: entries for at, entries, _ in hosts}
    left_out = LeftOut()
    for each in {tuple(entries): each for _, entries, each in hosts}.values():  # of hosts with the same files, one
        left_out.join(each)
    if line := left_out.line(channel):
        comm.say(line)
    whole = sorted({entry for entries in tables.values() for entry in entries}, key=lambda e: (e.name, e.sha256))
    refuse_splits(f"channel '{channel}' at {root}", [entry.name for entry in whole])
    target = place / f"{_key(encoder, whole)}.tokens"
    if not all(comm.gather(target.is_file())):
        comm.say(
            f"channel '{channel}': {len(tables)} hosts have different files, {len(whole)} together; "
            "each host gets the tokens of all"
        )
        source = place / f"{_key(encoder, tables[host])}.tokens"
        _exchange(target, source, host, tables, whole, comm)
    size = sum(entry.tokens for entry in whole)

    def opened() -> Tokens:
        if target.stat().st_size != size * 4:
            raise UserError(f"{target} has another size than its table says; fix: remove {target.parent}")
        if not size:
            return np.zeros(0, np.int32)
        return np.memmap(target, np.int32, "r").view(np.ndarray)  # a slice of a memmap itself takes 4 us longer

    return comm.on_all(opened), whole


def _together(work: CorpusWork, channel: str, root: Path, encoder: Encoder, comm: Communicator) -> list[CorpusFile]:
    """Tokenizes on one rank of each host. Returns the files of this host there, and nothing on its other ranks."""
    if comm.world.local_rank == 0:
        threading.Thread(target=_tokenize, args=(work, channel, root, encoder), daemon=True).start()
    else:
        work.ended.set()
    moved, said, last = time.monotonic(), time.monotonic(), -1.0
    while True:
        work.ended.wait(EVERY_S)
        rows = comm.exchange([float(work.ended.is_set()), float(work.error is not None), work.done, work.total])
        if any(row[1] for row in rows):
            work.stop.set()
        if all(row[0] for row in rows):
            break
        now, done, total = time.monotonic(), sum(row[2] for row in rows), sum(row[3] for row in rows)
        if done != last:
            moved, last = now, done
        if now - moved > NO_PROGRESS_S:
            raise RuntimeError(f"channel '{channel}': no host has read or tokenized anything for {NO_PROGRESS_S:.0f} s")
        if now - said > SAY_S:
            said = now
            comm.say(f"channel '{channel}': tokenized {done / 2**20:.0f} of {total / 2**20:.0f} MiB")

    def result() -> list[CorpusFile]:
        if work.error is not None:
            raise work.error
        return work.result

    return comm.on_all(result)


def _tokenize(work: CorpusWork, channel: str, root: Path, encoder: Encoder) -> None:
    try:
        names = listed(channel, root, work.skip_bad, work.left_out)
        sizes = [(root / name).stat().st_size for name in names]
        work.total = 2 * sum(sizes)  # once for the checksum, once for the tokens
        sums = []
        for name, size in zip(names, sizes, strict=True):
            sums.append(checksum(root / name))
            work.done += size
        table = (
            work.place
            / f"{hashlib.sha256(json.dumps([FORMAT, encoder.fingerprint, names, sums]).encode()).hexdigest()}.json"
        )
        wanted = list(zip(names, sums, sizes, strict=True))
        kept = _kept(table, {(name, sha256) for name, sha256, _ in wanted})
        if kept is None:
            entries, skipped = written(work, root, encoder, wanted)
            rows = [[entry.name, entry.sha256, entry.tokens] for entry in entries]
            write_json(table, {"files": rows, "skipped": skipped, "notes": work.notes})
            kept = _Table(entries, skipped, work.notes)
        work.result, work.skipped, work.notes = kept.files, kept.skipped, kept.notes
        if work.skipped and not work.skip_bad:  # an earlier job has skipped them
            raise _refusal(work.skipped[0][0])
        if not (work.place / f"{_key(encoder, work.result)}.tokens").is_file():
            table.unlink()
            raise UserError(f"{work.place} has lost a file; fix: start the job again, which tokenizes again")
    except OSError as error:
        work.error = UserError(
            f"channel '{channel}' at {root}: {error}; fix: check the channel, and the space in TMPDIR"
        )
    except BaseException as error:
        work.error = error
    finally:
        work.ended.set()


@dataclass(frozen=True, slots=True)
class _Table:
    """What an earlier job has tokenized: its files, the documents that it left out, and its notes."""

    files: list[CorpusFile]
    skipped: list[tuple[str, int]]
    notes: Counter[str]


def _kept(path: Path, wanted: set[tuple[str, str]]) -> _Table | None:
    """The table of an earlier job, of the files `wanted` (name and SHA-256). None if there is none, or if it is damaged, which a
    line of the log says: then the files are tokenized again. Raises OSError."""
    try:
        kept: Any = loads(path.read_bytes())  # Any: whatever the file holds
        files = [CorpusFile(_text(name), _text(sha256), _count(tokens)) for name, sha256, tokens in kept["files"]]
        skipped = [(_text(error), _count(count)) for error, count in kept["skipped"]]
        notes = Counter({note: _count(count) for note, count in kept["notes"].items()})
        if {(entry.name, entry.sha256) for entry in files} != wanted or len(files) != len(wanted):
            raise ValueError("it is of other files")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        print(f"{path} is damaged ({error}): the text is tokenized again", flush=True)
        return None
    return _Table(files, skipped, notes)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:60]} is no text")
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{str(value)[:60]} is no number of tokens or documents")
    return value


def written(
    work: CorpusWork, root: Path, encoder: Encoder, files: list[tuple[str, str, int]]
) -> tuple[list[CorpusFile], list[tuple[str, int]]]:
    """Writes the token file; returns its files, and the errors of the documents that it leaves out, with their numbers."""
    entries: list[CorpusFile] = []
    skipped: list[tuple[str, int]] = []
    made = work.place / f".{os.getpid()}-{time.monotonic_ns()}.tokens"
    with aside(made, lambda: work.place / f"{_key(encoder, entries)}.tokens") as file:
        for name, sha256, size in sorted(files):
            begin, before = file.tell(), len(skipped)
            for tokens in encoder.encode(documents(root / name), work.notes):
                if work.stop.is_set():
                    raise _StoppedError
                if not isinstance(tokens, BadDocument):
                    file.write(tokens.tobytes())
                    continue
                if not work.skip_bad:
                    raise _refusal(tokens.error)
                if tokens.retracts:  # it counts all documents of the file
                    file.seek(begin)
                    file.truncate()
                    del skipped[before:]
                skipped.append((tokens.error, tokens.documents))
            entries.append(CorpusFile(name, sha256, (file.tell() - begin) // 4))
            work.done += size
    return entries, skipped


def _refusal(error: str) -> UserError:
    return UserError(f"{error}, or leave it out by --skip-bad-samples")


def _exchange(
    target: Path,
    source: Path,
    host: int,
    tables: dict[int, list[CorpusFile]],
    whole: list[CorpusFile],
    comm: Communicator,
) -> None:
    """Writes `target` on each host: the tokens of all files, each from the first host that has it."""
    begins = {at: dict(zip(entries, _begins(entries), strict=True)) for at, entries in tables.items()}
    own = np.memmap(source, np.int32, "r") if source.stat().st_size else np.zeros(0, np.int32)

    def pieces(receive: Callable[[bytes], object]) -> None:
        for entry in whole:
            owner = min(at for at, table in begins.items() if entry in table)
            for begin in range(0, entry.tokens, PIECE):
                size = min(PIECE, entry.tokens - begin)
                flat = torch.empty(size * 4, dtype=torch.uint8)
                if comm.rank == owner:
                    at = begins[owner][entry] + begin
                    flat = torch.from_numpy(np.array(own[at : at + size]).view(np.uint8))
                comm.broadcast(flat, owner)
                receive(flat.numpy().tobytes())

    if comm.rank == host:
        write(target, lambda file: pieces(file.write))
    else:
        pieces(len)
    comm.meet()


def _begins(entries: list[CorpusFile]) -> list[int]:
    return [0, *np.cumsum([entry.tokens for entry in entries]).tolist()][:-1]


def _key(encoder: Encoder, entries: list[CorpusFile]) -> str:
    rows = [[entry.name, entry.sha256, entry.tokens] for entry in entries]
    return hashlib.sha256(json.dumps([FORMAT, encoder.fingerprint, rows]).encode()).hexdigest()
