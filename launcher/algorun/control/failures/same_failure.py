"""Whether a failure is the one of the attempt before, so that a third attempt would meet it again. Pure.

A failure is the program's if the same error comes at the same place twice, from the same checkpoint. A failure of the
machine may go away: a GPU, the network, a peer, memory that the kernel took back. docs/troubleshooting.md has the table.
"""

from __future__ import annotations

import re

from algorun.common.fast_dataclasses import dataclass

from . import peer_errors
from .failure import Failure, listed

# SIGKILL: the kernel's out-of-memory killer, or somebody. SIGTERM, SIGINT and SIGHUP come from outside as well.
SENT = (128 + 9, 128 + 15, 128 + 2, 128 + 1)
MACHINE_KINDS = ("engine", "node")  # mpirun or torchrun itself, and Ray's nodes
ERROR_TYPE = r"[A-Za-z_][\w.]*(?=:|$)"
STACK_FRAME = r'  File "(.*?)", line (\d+)'
# What the kernel's memory killer leaves behind in a rank whose child it has ended. outcome/hints.py explains it.
CHILD_KILLED = (
    r"DataLoader worker \(pid\S* [\d, ]+\) (is killed by signal: Killed|exited unexpectedly)|died with <Signals\.SIGKILL"
    r"|terminated abruptly|terminated (by|with) signal SIGKILL|ended with 137 before"
)
# What a GPU, its driver or the link between GPUs says of itself. An illegal address or a failed assert is the program's.
GPU = (
    rf"{peer_errors.CUDA}(uncorrectable|hardware stack error|unknown error|unspecified launch failure|initialization error"
    r"|system not yet initialized|all CUDA-capable devices are busy|CUDA-capable device\(s\) is/are busy"
    r"|no CUDA-capable device|invalid access of peer GPU memory|the launch timed out|driver shutting down)"
    r"|\bXid\b|fallen off the bus|GPU is lost|NVRM:|ECC error|CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)"
    r"|CUDNN_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)"
)
# NCCL and what carries it between hosts. A wrong call of NCCL is the program's.
CARRIER = r"NCCL|\b(EFA|libfabric|OFI|ibv_\w+)\b|aws-ofi-nccl"
WRONG_CALL = r"ncclInvalid(Usage|Argument)|invalid (usage|argument)"
# Other machines that a program asks, and the disks it reads: they may answer next time.
OUTSIDE = (
    r"\b(\w*Connection\w*Error|\w*Timeout(Error)?|TimeoutExpired|gaierror|URLError|HTTPError|SSLError|BrokenPipeError|IncompleteRead"
    r"|RemoteDisconnected|ProtocolError|ChunkedEncodingError|EndpointConnectionError|ClientError|SlowDown|Throttling\w*):"
    r"|Temporary failure in name resolution|Network is unreachable|Address already in use|EADDRINUSE"
    r"|\[Errno (5|98|101|104|110|111|113|116)\]"
)


@dataclass(frozen=True, slots=True)
class SameFailure:
    """What two failures of one program have in common where another attempt would fail like them.

    `error` is the type of the exception, or how the rank has ended; `place` the user's own line, "" where none is known.
    `step` counts the rank's optimizer steps in its attempt, 0 before the first one or where nobody counts. `words` is the
    message where no step tells the place. `hosts` are those that have reported it.
    """

    error: str
    place: str
    step: int
    words: str
    hosts: frozenset[str]

    def text(self, attempt: int) -> str:
        """One sentence. `attempt` is the number of the second one, from 0."""
        at = f" at {self.place}" if self.place else ""
        after = f" after step {self.step}" if self.step else ""
        where = listed(sorted(self.hosts))
        return (
            f"{self.error}{at} on {where}{after} has ended attempts {attempt} and {attempt + 1} in the same way, so another one"
            " would fail too"
        )


def of_machine(failure: Failure) -> bool:
    """True where the failure may be gone next time: it comes from a machine, a network or a peer, or its place is unknown."""
    if failure.kind == "left":  # its words are those of a rank that missed it
        return False
    if failure.kind == "hang":  # of a rank that does not answer, or of all ranks at once, nobody knows the line
        return failure.rank is None or not _hang_place(failure)
    if failure.kind in MACHINE_KINDS or failure.secondary or failure.of_gpu or failure.code in SENT:
        return True
    words = "\n".join((failure.message, *failure.own_words))
    carried = peer_errors.says(CARRIER, words) and not peer_errors.says(WRONG_CALL, words)
    return carried or any(peer_errors.says(each, words) for each in (GPU, CHILD_KILLED, OUTSIDE))


def identity(failure: Failure, hosts: frozenset[str]) -> SameFailure | None:
    """What identifies a failure of the program, None for one of the machine. `hosts`: all that have reported it."""
    if of_machine(failure):
        return None
    place = _hang_place(failure) if failure.kind == "hang" else "" if failure.kind == "left" else failure.place
    words = "" if failure.step else failure.message
    return SameFailure(error_of(failure), place, failure.step, words, hosts)


def error_of(failure: Failure) -> str:
    """The type of the exception, or how the rank has ended where it has printed none: `ValueError`, `exit 7`, `hang`."""
    if failure.kind == "hang":
        return "a hang"
    if failure.kind == "nonfinite":
        return "a value that is not finite"
    if failure.kind == "left":
        return "a rank that left with 0"
    found = re.match(ERROR_TYPE, failure.message)
    if failure.kind == "exception" or (failure.place and failure.kind == "exit"):
        return found[0] if found else failure.kind
    return f"exit {failure.code}"


def alike(failure: Failure, other: Failure) -> bool:
    """True where two failures of one attempt are the same error at the same place, on whatever host."""
    return (failure.kind, failure.place, error_of(failure)) == (other.kind, other.place, error_of(other))


def is_same(before: SameFailure | None, now: SameFailure | None, *, same_start: bool) -> bool:
    """Whether an attempt has failed as the one before it. `same_start`: no host had a newer checkpoint at its begin.

    Without a common host it is another failure: a program's own comes where its data and its rank are.
    """
    if before is None or now is None or not same_start or not before.hosts & now.hosts:
        return False
    return (before.error, before.place, before.step, before.words) == (now.error, now.place, now.step, now.words)


def _hang_place(failure: Failure) -> str:
    """The named rank's own line in a hang, as `train.py:10`; "" where it is not known."""
    from algorun.control.hang.hang import LIBRARY  # no start needs it

    frames = re.findall(STACK_FRAME, failure.traceback)
    own = [(file, line) for file, line in frames if not re.search(LIBRARY, file)]
    return f"{own[-1][0].rpartition('/')[2]}:{own[-1][1]}" if own else ""
