"""How far a failure is from the cause of the job's end, by its own text. Pure.

Only a program's own last words count: the exception that began a chain, or the last lines of a program without one.
The rest may mention connections that did no harm: source lines in a traceback, warnings of retries in a log.
"""

from __future__ import annotations

import re
from enum import IntEnum
from itertools import pairwise

# Patterns are text, compiled at the first failure: no start waits for that.
# torch's two forms, `frame #4: name + 0x9 (0x7f in lib.so)` and `#4 name from file:9`, Open MPI's, and that of JAX and
# TensorFlow, `    @     0x7f9613840634  name`.
FRAME = (
    r"\s*(\[rank\d+\]:\s*)?(frame #\d+: .*0x|#\d+ .* from \S*:\d+$|\[\S+\] \[ ?\d+\] )"
    r"|    @ +0x[0-9a-f]+  |\*\*\* Check failure stack trace: \*\*\*$"
)
# What faulthandler writes after the last words of a process that a signal ends: the stacks of all threads.
DUMP = (
    r'  (File ".*", line \d+ in |Binary file "|<no Python frame>|\.\.\.$)'
    r"|(Current thread|Thread) .*\(most recent call first\):|Extension modules: "
)
SEARCHED = 4000  # characters that are looked at: `.*` takes quadratic time
LAST_LINES = 12  # of a program that printed no traceback


class Distance(IntEnum):
    """How far a failure is from the cause of the job's end, by its own text."""

    CAUSE = 0
    WAITED = 1  # waited in vain: a consequence of any failure that is no such wait
    PEER = 2  # only says that another process has gone


# Collected from torch 2.10 to 2.15 (gloo, TCPStore; NCCL's from its documentation), Open MPI 4.1 with mpi4py, JAX 0.10,
# TensorFlow 2.21.
# Each pattern holds a framework's own words: a script whose database refuses a connection is a cause.
PEER = (
    r"gloo/transport/.*(closed by (remote )?peer|reset by peer|broken pipe|connection refused|socket closed|no route to)"
    r"|Rank \d+ failed to pass monitoredBarrier|Ranks? [\d, ]+ failed to pass monitoredBarrier"
    r"|Dist(Network|Store|Backend)?Error: .*(recvValue failed|sendBytes failed|failed to recv, got 0 bytes|broken pipe"
    r"|connection (reset|closed|refused)|connection was likely closed|client socket has (failed|timed out))"
    r"|(RuntimeError|c10::\w*Error): .*(recvValue failed|sendBytes failed|client socket has (failed|timed out))"
    r"|ncclRemoteError|remote process exited or there was a network error|NCCL communicator was aborted"
    r"|NCCL communicator encountered error set by|MPI_ERR_PROC_FAILED"
    # The EFA plugin's words for a peer that has gone. The same words from a call of the script's own are a cause.
    r"|(async exception|terminated with exception): NCCL error: unhandled system error"
    r"|ORTE has lost communication|mpirun (noticed|detected) that|MPI_ABORT was invoked|PMIX.*UNREACHABLE"
    # Ray's words for a node that has gone; that of a worker that has gone alone is a cause.
    r"|ray\.exceptions\.(ActorUnavailable|NodeDied|LocalRayletDied|RaySystem)Error: |ray\.exceptions\..*its node has died"
    r"|mca_btl_tcp\w+: .*(reset by peer|broken pipe|connection refused)"
    r"|JAX distributed service detected fatal errors|Failed to send RPC to coordination service"
    r"|errors_impl\.UnavailableError: .*Collective ops is aborted by: "
)
WAITED = (
    r"gloo/transport/.*timed out waiting|Dist(Network|Store|Backend)Error: .*(wait timeout|timed out|NCCL timeout in)"
    r"|RuntimeError: (wait timeout after|socket timeout)"
    r"|NCCL operations have failed or timed out|DeviceMesh .*timed out"
    r"|after attempting to dump debug info, due to|ProcessGroupNCCL's watchdog got stuck"
)
# What mpirun and the MPI library of a rank print when another rank has left without MPI_Finalize (Open MPI 4.1 and 5.0).
IMPROPERLY = r"due to process rank ([0-9]{1,9}) with PID \d+ on\s+node \S+\s+exiting\s+improperly"
MPI_LEFT = (
    rf"failed to TCP connect to a peer MPI process|An error occurred in Socket closed|{IMPROPERLY}"
    r"|mca_btl_tcp\w*: .*(reset by peer|broken pipe|connection refused)"
)
# The rank itself has timed out. It then ends its communicators, and prints words of PEER about them.
TIMED_OUT = r"Watchdog caught collective operation timeout"
NCCL = rf"{TIMED_OUT}|NCCL"
# What torch, Triton, thrust and NCCL print before the words of a CUDA error.
CUDA = (
    r"(CUDA (driver )?error( \(\S+:\d+\))?: |\bError \d{1,3}: |Triton Error \[CUDA\]: |(cudaError|CUDA_ERROR_)\w+: "
    r"|Cuda failure (\d+ )?')"
)
FAILED_GPU = CUDA + r"uncorrectable ECC error encountered"  # memory of a GPU has failed
# A failed write: the system's errors, and the words of torch, numpy and safetensors.
WRITE = (
    r"\[Errno (5|27|28|30|122)\]|no space left on device|disk quota exceeded|read-only file system|input/output error"
    r"|PytorchStreamWriter failed|basic_ios::clear|enforce fail at inline_container\.cc|Parent directory .* does not exist"
    r"|OSError: (not enough free space to write|\d+ requested and \d+ written)"
)


def chain(traceback: str, *, mixed: bool) -> list[str]:
    """The exceptions of a traceback as `Type: message`, the oldest first, and members of a group after it; [] where it holds
    none.

    `mixed`: the text is the end of a log, where only the last chain counts.
    """
    return [words for words, _ in _exceptions(traceback, mixed=mixed)]


def _exceptions(traceback: str, *, mixed: bool) -> list[tuple[str, bool]]:
    """The exceptions of a traceback, and whether each began what happened to a member of a group."""
    from . import last_words, tracebacks  # imported late: only a failure uses them

    lines = tracebacks.lines_of(traceback)
    found = tracebacks.blocks(lines)
    if mixed:
        found = [each for each in found if not last_words.by_launcher(each.first(lines))]
        # Linked with the one before: Python says so between the two, or it is a member.
        linked = [
            later.member or (each.end < later.begin and re.match(tracebacks.LINK, lines[each.end]) is not None)
            for each, later in pairwise(found)
        ]
        begin = next((at + 1 for at in reversed(range(len(linked))) if not linked[at]), 0)
        found = found[begin:]
    group = re.compile(rf"{tracebacks.GROUP}$")
    return [(each.text(lines), each.oldest and not group.search(each.first(lines))) for each in found]


def own_words(kind: str, message: str, traceback: str) -> list[str]:
    """The words to judge a failure by: of a group those of each member, else of the exception that began the chain."""
    found = _exceptions(traceback, mixed=kind != "exception")
    if found:
        return [words for words, begins in found if begins] or [found[0][0]]
    if kind == "exception":
        return [message]
    return [" ".join([message, *last_lines(traceback)])]


def last_lines(text: str) -> list[str]:
    """The last lines of a log, without the stacks that torch and faulthandler print below a fatal error."""
    told = [line for line in text.splitlines() if line.strip() and not re.match(f"{FRAME}|{DUMP}", line)][-LAST_LINES:]
    while len(told) > 1 and sum(map(len, told)) > SEARCHED:  # torch's lines can be long, and the last ones count most
        told = told[1:]
    return told


def distance(words: str) -> Distance:
    """How far a failure with these words is from the cause."""
    if says(TIMED_OUT, words):
        return Distance.WAITED
    if says(PEER, words):
        return Distance.PEER
    return Distance.WAITED if says(WAITED, words) else Distance.CAUSE


def failed_write(message: str, traceback: str) -> bool:
    """True where an exception of the chain names a failed write."""
    return any(says(WRITE, words) for words in (message, *chain(traceback, mixed=False)))


def nearest(words: list[str]) -> Distance:
    """That of several exceptions at once: one of them may have begun what the others tell."""
    return min(map(distance, words))


def says(pattern: str, words: str) -> bool:
    """True where the words contain the pattern, in upper or lower case."""
    return re.search(pattern, words[:SEARCHED], re.IGNORECASE) is not None
