"""Faults that only a GPU has: what the job says, with which code it ends, and after how many seconds."""

from __future__ import annotations

import re

from algorun.common.errors import ExitCode
from tests.gpu.session import Outcome, Seen, Session, Skip, Wrong, program

NOTICED_S = 45.0  # from a collective's timeout until the job has left: the watchdog looks once a second, then dumps
# After a timeout the watchdog lets the other ranks write their records: it sleeps for four times this, by default 60 s.
DUMP = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}
TIMED_OUT = ("watchdog", "timeout", "timed out")
OUT_OF_MEMORY = "out of memory"
QUEUED = 300  # collectives behind the one that waits: more than the recorder's answer has
HANG_S, BUSY_S = 10, 90


def graph(session: Session) -> Seen:
    """Replays are signs of life: the job outlives a hang limit that is shorter than it."""
    sizes = session.sizes
    done = session.run(
        *("run", "--slots", "1", program("captured.py"), str(sizes.replay_s)),
        base=session.base(),
        ALGORUN_HANG_S=str(sizes.hang_s),
    ).must()
    count = done.find(r"replayed (\d+) steps")[1]
    return Seen(f"{count} replays in {sizes.replay_s:g} s with ALGORUN_HANG_S={sizes.hang_s}")


def collective(session: Session) -> Seen:
    """One GPU: the collective waits behind a busy stream. On the CPU two ranks: the second comes late."""
    return _late(session, 1 if session.machine.on_gpu else 2)


def collective_of_two(session: Session) -> Seen:
    """The rank that never came is named, not the one that waited for it."""
    seen = _late(session, 2)
    named = re.search(r"rank (\d+)", seen.note)
    if named is None or named[1] != "1":
        raise Wrong(f"the failure does not name rank 1, which slept: {seen.note}")
    return seen


def _late(session: Session, ranks: int) -> Seen:
    timeout_s = session.sizes.collective_s
    done = session.run("run", "--slots", str(ranks), program("late.py"), str(timeout_s), base=session.base(), **DUMP)
    if ranks == 1 and done.code == 0 and "the collective ended" in done.text:
        raise Skip("needs 2 GPUs: the collective of one rank ended by itself, late, and NCCL's watchdog let it")
    first = _failed(done)
    begun = done.text.count("ready, device")
    if begun != ranks:
        raise Wrong(f"{begun} of {ranks} ranks came as far as the collective: {first}")
    if not any(word in done.failure.lower() for word in TIMED_OUT):
        raise Wrong(f"nothing says that a collective timed out: {first}")
    # From the start, which torch's import and NCCL's own start belong to.
    if done.seconds > timeout_s + NOTICED_S:
        raise Wrong(f"the job left {done.seconds:.1f} s after its start: {first}")
    return Seen(f'timeout {timeout_s} s, left with {done.code} after {done.seconds:.1f} s from the start: "{first}"')


def recorder(session: Session) -> Seen:
    """A hang's verdict names the call that the GPU is in, not the newest that the program has queued."""
    done = session.run(
        *("run", "--slots", "1", program("stuck.py"), str(QUEUED), str(BUSY_S)),
        base=session.base(),
        ALGORUN_HANG_S=str(HANG_S),
    ).must(ExitCode.HANG)
    number = done.find(r"waits in call (\d+)$")[1]
    first = _failed(done)
    if f"(call {number} of the default group), which has not completed" not in first:
        raise Wrong(f"the verdict does not name call {number}: {first}")
    return Seen(f'{QUEUED} calls queued, left with {done.code} after {done.seconds:.1f} s: "{first}"')


def index(session: Session) -> Seen:
    """The failure says what it was, although CUDA reports it later than it happened."""
    done = session.run("run", "--slots", "1", program("index_out_of_range.py"), base=session.base())
    first = _failed(done)
    wanted = "device-side assert" if session.machine.on_gpu else "out of bounds"
    if wanted not in done.failure:
        raise Wrong(f"the failure does not say {wanted!r}: {done.failure.strip()}")
    hint = [line for line in done.failure.splitlines() if line.startswith("hint: ")]
    if session.machine.on_gpu and not hint:
        raise Wrong(f"the failure has no hint: {done.failure.strip()}")
    return Seen(f'left with {done.code} after {done.seconds:.1f} s: "{first}"' + (f"; {hint[0]}" if hint else ""))


def restart(session: Session) -> Seen:
    """Each attempt finds the memory of the last one free."""
    machine, sizes = session.machine, session.sizes
    count = min(int(machine.free_bytes * sizes.share_taken), sizes.most_taken)
    done = session.run(
        *("run", "--slots", "1", "--restarts", "2", program("takes_memory.py"), str(count)), base=session.base()
    )
    if OUT_OF_MEMORY in done.text.lower():
        raise Wrong(f"out of memory: {next(x for x in done.text.splitlines() if OUT_OF_MEMORY in x.lower())}")
    done.must()
    for attempt in range(3):
        done.find(rf"attempt {attempt} holds {count} bytes")
    return Seen(
        f"{count / 2**30:.1f} GiB taken in each of 3 attempts, {done.seconds:.1f} s for all, never out of memory"
    )


def _failed(done: Outcome) -> str:
    """The failure's first line. Raises Wrong where there is none."""
    if done.code == 0 or not done.failure.strip():
        raise Wrong(f"the job ended with {done.code} and this failure: {done.failure.strip() or 'none'}")
    return done.failure.strip().splitlines()[0]
