"""Which rank holds all the others up, judged by what every rank is doing. Pure.

What is known of torch here comes from real dumps: gloo, DDP, FSDP, ZeRO and functional collectives of torch 2.13; so does
what is known of JAX 0.10.2, TensorFlow 2.21.0 and Ray 2.60.0.
In a job on GPUs the collectives return at once, and ranks wait where they need a number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from algorun.common.fast_dataclasses import dataclass

from .call import CollectiveCall

# Patterns are text, compiled at the first hang: no start waits for that.
STANDARD = r"/lib(64)?/python\d[\d.]*/(?!(site|dist)-packages/)|^<frozen "
# Files that are not the user's own code. The bundled entrypoints (algorun_train) count as the user's.
LIBRARY = STANDARD + r"|/(site|dist)-packages/(?!algorun_train/)|/launcher/algorun/|/compat/algorun_smdistributed/"
# Files between a wait and its caller: the standard library, torch's wrappers.
WRAPPER = STANDARD + r"|/torch/(_ops|_tensor|autograd/function|_dynamo/eval_frame|utils/\w+|optim/optimizer)\.py$"
# Where libraries wait for other ranks in Python code (a file and a function).
COLLECTIVE = (
    r"/torch/distributed/|/torch/nn/parallel/distributed\.py |/horovod/|/deepspeed/comm/|/algorun/(inside/)?\w+\.py "
)
# The same of other frameworks, where a computation on a device waits as well.
COLLECTIVE += (
    r"|/jax/experimental/multihost_utils\.py |/jax/_src/interpreters/pxla\.py __call__$|/jax/_src/distributed\.py "
    r"|/jax/_src/(array|api)\.py (_value|block_until_ready)$|/jaxlib/xla_client\.py make_\w+_client$"
    r"|/tensorflow/python/eager/(execute|context)\.py |/ray/_private/worker\.py (get|get_objects|wait|main_loop)$|^<end> "
)
# Where they wait for a GPU, whose queue may hold a collective. On the CPU backward() waits for a collective itself.
VALUE = (
    r"/torch/autograd/(graph|__init__)\.py |/torch/cuda/(__init__|streams)\.py |/torch/amp/grad_scaler\.py "
    r"|/torch/_tensor_str\.py |/torch/_tensor\.py __(format|contains)__$"
)
# Calls of compiled code in the user's own line that wait for other ranks: mpi4py's, those of a Work object.
COLLECTIVE_CALL = (
    r"(?i)\.(i?(?:all_?)?(?:reduce|gatherv?)|reduce_scatter|bcast|scatterv?|i?barrier|alltoall[vw]?|s?send(?:recv)?|recv"
    r"|probe|wait(?:all|any|some)?)\("
)
# Lines of the user's own that start or end MPI, which waits for all ranks.
MPI_LINE = r"^(from mpi4py import|import mpi4py)\b|\bMPI\.(Init|Init_thread|Finalize)\("
# Calls there that wait for a GPU: a tensor goes to it or comes from it.
VALUE_CALL = r"\.(to|cuda|cpu|numpy|item|tolist|nonzero|synchronize)\("
# These wait for a GPU where they are given a tensor. They count only on a line that calls nothing else but OF_TENSORS.
CONVERSION = r"float|int|bool|isnan|isinf|isfinite|equal|allclose"
OF_TENSORS = r"abs|add|all|any|append|argmax|detach|format|log|max|mean|min|norm|print|round|sum|update"
# Lines that may ask a tensor whether it is true. Not `while name:`, where the name is mostly a flag of the loop.
COMPARES = r"([<>]|[!=]=)"
TRUTH = rf"^(if|elif|while|assert)\b.*{COMPARES}|^(if|elif|assert)( not)? [\w.\[\]]+\s*([:,]|$)|\bif\b.*{COMPARES}.*\belse\b"
# Calls that wait for something else than a GPU.
OUTSIDE = r"\b(input|open|\w*read\w*|recv\w*|fromfile|sleep|acquire|accept|connect|poll|select|waitpid)\("
# Files of the standard library that wait for what another process sends, and calls in the user's own line that do.
RECEIVES = r"/(socket|ssl|selectors|multiprocessing/connection|http/client)\.py$"
RECEIVING_CALL = r"\.(accept|connect|recv\w*|read\w*|select|poll|getresponse)\("
# A process that only looks after its children: the parent of mp.spawn, a launcher below the rank.
PARENT = r"/(multiprocessing/(popen_\w+|connection|process|spawn)|subprocess|elastic/.*)\.py$"
# A worker of torch's DataLoader that has nothing to load, and where its rank waits for what workers load (a file and a function).
IDLE_LOADER = r"/torch/utils/data/_utils/worker\.py _worker_loop$"
WAITS_FOR_LOADER = r"/torch/utils/data/dataloader\.py "
LONGEST_SOURCE = 60  # characters of a line of source in the message
MOST_PLACES = 3  # where ranks wait, in the message


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One entry of a stack: a function, and the line that it is at."""

    file: str
    line: int
    function: str

    @property
    def where(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@dataclass(frozen=True, slots=True)
class Stack:
    """What one rank, or one process of a rank, is doing.

    `steps` is its step count. `frames` is its main thread's stack, innermost first, and empty where it cannot be asked.
    `frozen` is true where it was asked and did not answer. `text` is the whole dump. `source` is the line of code of
    the user's innermost frame, "" where it could not be read. `calls` are its last collective calls, oldest first.
    `quiet_s`: the seconds since its last step or sign of life, None where it has made no step.
    """

    rank: int
    host: str
    steps: int
    frames: tuple[StackFrame, ...] = ()
    frozen: bool = False
    text: str = ""
    source: str = ""
    calls: tuple[CollectiveCall, ...] = ()
    quiet_s: float | None = None

    @property
    def own(self) -> StackFrame | None:
        """The innermost frame of the user's code, else the innermost of all."""
        inside = next(iter(self.frames), None)
        return next((frame for frame in self.frames if not re.search(LIBRARY, frame.file)), inside)

    @property
    def wait(self) -> str:
        """Where the main thread waits for others, such as `all_reduce (distributed_c10d.py:3252)`; "" where it works."""
        waits: list[StackFrame] = []
        for frame in self.frames:
            if re.search(f"{COLLECTIVE}|{VALUE}", f"{frame.file} {frame.function}"):
                waits.append(frame)
            elif not re.search(WRAPPER, frame.file):
                break
        named = [frame for frame in waits if not re.match(r"[_<]|wrapper$", frame.function)]
        for frame in (*named, *waits):
            return f"{frame.function} ({frame.where})"
        if self.starts_mpi and self.own is not None:
            return f"MPI's start or end ({self.own.where})"
        call = _waiting_call(self.source) if self.frames and self.own == self.frames[0] else ""
        return f"{call} ({self.frames[0].where})" if call else ""

    @property
    def starts_mpi(self) -> bool:
        """True where MPI starts, which the import of mpi4py does, or ends."""
        inside = next((frame for frame in self.frames if not re.search(STANDARD, frame.file)), None)
        return inside is not None and inside == self.own and re.search(MPI_LINE, self.source) is not None

    @property
    def in_collective(self) -> bool:
        """True where a library waits for other ranks, and not only for a GPU."""
        inside = next((frame for frame in self.frames if not re.search(WRAPPER, frame.file)), None)
        return inside is not None and re.search(COLLECTIVE, f"{inside.file} {inside.function}") is not None

    @property
    def asks_value(self) -> bool:
        """True where the user's own line may wait for a GPU without a call, as in `if loss > limit:`."""
        calls = re.findall(r"(\w+)\(", self.source)
        only_tensors = all(re.fullmatch(f"{CONVERSION}|{OF_TENSORS}", each) for each in calls)
        innermost = bool(self.frames) and self.own == self.frames[0]
        return innermost and only_tensors and re.search(TRUTH, self.source) is not None

    @property
    def receives(self) -> bool:
        """True where it waits for what another process sends, or connects to one."""
        if not self.frames:
            return False
        own_line = self.own == self.frames[0] and re.search(RECEIVING_CALL, self.source) is not None
        return own_line or re.search(RECEIVES, self.frames[0].file) is not None

    @property
    def on_gpu(self) -> bool:
        """True where the rank's calls run on a GPU, or, where none are known, it waits for one at its own line."""
        if self.calls:
            return any(call.state for call in self.calls)
        return bool(self.wait) and self.own == self.frames[0] and not re.search(COLLECTIVE_CALL, self.source)

    @property
    def outside(self) -> bool:
        """True where the rank waits for something that is neither a rank nor a GPU: time, a file, a child."""
        if not self.frames or self.wait:
            return False
        inside = self.frames[0]
        return bool(re.search(STANDARD, inside.file) or (self.own == inside and re.search(OUTSIDE, self.source)))


def only_wait_for_gpus(stacks: Sequence[Stack]) -> bool:
    """True where each rank waits, and on GPUs: programs run ahead of them, so a rank with fewer steps is no suspect."""
    on_gpus = any(stack.on_gpu for stack in stacks)
    return on_gpus and all(stack.wait or stack.asks_value for stack in stacks)


def odd(stacks: Sequence[Stack]) -> Stack:
    """The rank that holds the others up. `stacks` holds one stack of each rank, at least one.

    A rank that does not answer is named first. Else the suspects are the ranks that work and are behind in steps, or
    else those that work, or else those that are behind. Of the suspects it is the one at the place where the fewest
    are, and of equals the lowest rank.
    """
    if frozen := [stack for stack in stacks if stack.frozen]:
        return min(frozen, key=lambda stack: stack.rank)
    known = [stack for stack in stacks if stack.frames] or list(stacks)
    waiting = {id(stack) for stack in known if stack.wait}
    least = min(stack.steps for stack in known)
    behind = [stack for stack in known if stack.steps == least]
    busy = [stack for stack in known if id(stack) not in waiting]
    busy_behind = [stack for stack in behind if id(stack) not in waiting]
    suspects = busy_behind or busy or behind
    places = Counter(_place(stack) for stack in suspects)
    return min(suspects, key=lambda stack: (places[_place(stack)], stack.rank))


def goes_on(stack: Stack, idle_s: float) -> bool:
    """True where a rank has shown a step or a sign of life long after the others stood still, who have waited for `idle_s`.

    Not a little after them: ranks that work in step stop within seconds of each other.
    """
    return stack.quiet_s is not None and stack.quiet_s < idle_s / 2


def suspects_of_silence(stacks: Sequence[Stack]) -> list[Stack]:
    """The ranks that may hold up the others of a job that stands still: not those that wait for what another one sends."""
    return [stack for stack in stacks if stack.frozen or not (stack.wait or stack.receives)] or list(stacks)


def of_one_rank(processes: Sequence[Stack]) -> Stack:
    """The process that speaks for a rank of several: not a parent that waits for its children, nor a rank that waits for its
    DataLoader while a worker of it loads, nor a worker that has nothing to load."""
    workers = [one for one in processes if not (one.frames and re.search(PARENT, one.frames[0].file))]
    at_work = [one for one in workers if not _is_in(one, IDLE_LOADER)]
    loading = [one for one in at_work if not _is_in(one, WAITS_FOR_LOADER)]
    return odd(loading or at_work or workers or processes)


def _is_in(stack: Stack, place: str) -> bool:
    inside = next((frame for frame in stack.frames if not re.search(STANDARD, frame.file)), None)
    return inside is not None and re.search(place, f"{inside.file} {inside.function}") is not None


def message(named: Stack, stacks: Sequence[Stack], idle_s: float, timed_out: str = "", *, silent: bool = False) -> str:
    """One line: for how long, where the named rank is, and where the others wait.

    `silent`: the job has shown no sign of progress, whoever makes steps. `timed_out` names the ranks whose waits have timed out;
    the line then says so in place of the time.
    """
    others = [stack for stack in stacks if stack is not named]
    waits = Counter(stack.wait for stack in others if not stack.frozen and stack.wait)
    ahead = max((stack.steps for stack in others), default=0)
    elsewhere = f" (others: {ahead})" if ahead > named.steps else ""
    begin = f"no step for {idle_s:.0f} s after step {named.steps}{elsewhere}"
    begin = f"no sign of progress for {idle_s:.0f} s" if silent else begin
    text = f"{doing(named)} while {timed_out} timed out" if timed_out else f"{begin}: {doing(named)}"
    if not waits:
        return text
    label, count = waits.most_common(1)[0]
    more = f" of {len(others)}" if count < len(others) else ""
    who = f"{count}{more} {'other waits' if count == 1 and not more else 'others wait'}"
    return f"{text} {'and' if timed_out else 'while'} {who} in {label}"


def nobody(stacks: Sequence[Stack], idle_s: float, *, silent: bool = False) -> str:
    """One line where no rank holds the others up: for how long, and where all wait. `silent` as in `message`."""
    waits = Counter(_waits_at(stack) for stack in stacks)
    where = ", ".join(f"{count} in {label}" for label, count in waits.most_common(MOST_PLACES))
    more = sum(count for _, count in waits.most_common()[MOST_PLACES:])
    left = f", {more} elsewhere" if more else ""
    ranks = f"all {len(stacks)} ranks wait" if len(stacks) > 1 else "its only rank waits"
    if silent:
        return f"no sign of progress for {idle_s:.0f} s: {ranks} for their GPUs or for each other: {where}{left}"
    return f"no step for {idle_s:.0f} s: {ranks} for their GPUs or for each other: {where}{left}"


def _waits_at(stack: Stack) -> str:
    where = stack.own.where if stack.own else ""
    return stack.wait if where in stack.wait else f"{stack.wait or 'a value'} at {where}"


def at_one_line(stacks: Sequence[Stack]) -> bool:
    """True where there are several ranks, all at the same line of the user's code."""
    return len(stacks) > 1 and all(stack.frames for stack in stacks) and len({_place(stack) for stack in stacks}) == 1


def _waiting_call(source: str) -> str:
    """The call in the user's own line that waits for other ranks or a GPU, such as `item`; "" where none does."""
    if call := re.search(COLLECTIVE_CALL, source):
        return call.group(1)
    if re.search(OUTSIDE, source):
        return ""
    if call := re.search(VALUE_CALL, source):
        return call.group(1)
    calls = re.findall(r"(\w+)\(", source)
    if not all(re.fullmatch(f"{CONVERSION}|{OF_TENSORS}", each) for each in calls):
        return ""
    return next((each for each in calls if re.fullmatch(CONVERSION, each)), "")


def _place(stack: Stack) -> tuple[str, int]:
    return (stack.own.file, stack.own.line) if stack.own else ("", 0)


def doing(stack: Stack) -> str:
    """Where it is, in a few words: the function, its file and line, and the line's source."""
    if stack.frozen:
        return "the process does not answer (stopped, or held in the kernel)"
    if stack.own is None:
        return f"a process whose stack cannot be read{f' ({stack.source})' if stack.source else ''}"
    inside = next((frame for frame in stack.frames if not re.search(STANDARD, frame.file)), stack.frames[0])
    if stack.own != inside:
        return f"{inside.function} ({inside.where}), called at {stack.own.where} in {stack.own.function}"
    shown = stack.source[:LONGEST_SOURCE]
    return f"{inside.function} at {inside.where}{f': {shown}' if shown else ''}"
