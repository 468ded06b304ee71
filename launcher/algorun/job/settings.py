"""Every environment variable `ALGORUN_*`: name, default, allowed values, meaning. The launcher reads them here only.

To add one: declare it below, put it into its group, read it with `NAME.read(environ)`, and run
`python docs/settings_page.py > docs/settings.md`. Programs inside a rank import nothing of the launcher and read their
variables themselves; these variables are declared here too (group RANK). An empty variable counts as unset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from algorun.errors import UserError

from .engine import Engine
from .values import HOST_NAME_LENGTH, MOST_SECONDS, count, seconds

Value = TypeVar("Value", covariant=True)

NEVER_S = MOST_SECONDS  # a wait without an end
MOST_RESTARTS = 1000
HIGHEST_PORT = 65535
TOOLKIT = "toolkit"  # ALGORUN_ENGINE: AWS's own launcher
CONTROL_PORT = 29600  # below the ephemeral range, away from torchrun's 29400 and 29500


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """One environment variable. `parse(name, text)` returns its value or raises UserError; `unit` is "s" for seconds."""

    name: str
    default: Value
    parse: Callable[[str, str], Value]
    allowed: str
    meaning: str
    unit: str = ""

    def read(self, environ: Mapping[str, str]) -> Value:
        """The value in this environment, the default where the variable is unset or empty. Raises UserError."""
        text = environ.get(self.name, "")
        return self.parse(self.name, text) if text else self.default


# -- how a text becomes a value --------------------------------------------------------------------------------------


def _text(name: str, text: str) -> str:
    return text


def _one(name: str, text: str) -> bool:
    return text == "1"


def _set(name: str, text: str) -> bool:
    return True


def _seconds_or_off(name: str, text: str) -> float:
    return NEVER_S if text == "off" else seconds(name, text)


def _restarts(name: str, text: str) -> int:
    return count(name, text, MOST_RESTARTS, least=0)


def _port(name: str, text: str) -> int:
    return count(name, text, HIGHEST_PORT)


def _is_address(text: str) -> bool:
    """True for what may be an IP address, or a name that resolves to one."""
    return text.isascii() and 0 < len(text) <= HOST_NAME_LENGTH and all(c.isalnum() or c in "-._:%" for c in text)


def _addresses(name: str, text: str) -> Mapping[str, str]:
    pairs = [item.partition("=") for item in text.split(",") if item]
    if any(not host or not _is_address(address) for host, _, address in pairs):
        raise UserError(name, text, allowed="algo-1=10.0.0.1,algo-2=10.0.0.2")
    return {host: address for host, _, address in pairs}


# -- the launcher ----------------------------------------------------------------------------------------------------

POSITIVE = "a number above 0"
ENGINE: Setting[Engine | None] = Setting(
    "ALGORUN_ENGINE", None, Engine.of, f"{', '.join(Engine)}; toolkit",
    "What starts the ranks; `--engine` overrides it. Unset: what the job's distribution asks for, else native. "
    "`toolkit` hands `algorun train` to AWS's sagemaker-training",
)  # fmt: skip
SLOTS: Setting[int | None] = Setting(
    "ALGORUN_SLOTS", None, count, "1 to 4096", "Ranks on each host; `-j` and `--slots` override it"
)
RESTARTS: Setting[int] = Setting(
    "ALGORUN_RESTARTS",
    0,
    _restarts,
    "0 to 1000",
    "Attempts that may follow a failed one; `--restarts` and the hyperparameter `algorun_restarts` override it",
)
SHARE_NOTHING = Setting(
    "ALGORUN_SHARE_NOTHING", False, _one, "1", "One process on each host, each alone, without ranks"
)
EQUAL_SLOTS = Setting(
    "ALGORUN_EQUAL_SLOTS", False, _one, "1", "Hosts with different numbers of ranks end the job with exit code 64"
)
PORT = Setting(
    "ALGORUN_CONTROL_PORT", CONTROL_PORT, _port, "1 to 65535", "TCP port of the control channel on the leader"
)
ADDRESSES: Setting[Mapping[str, str]] = Setting(
    "ALGORUN_ADDRESSES",
    {},
    _addresses,
    "algo-1=10.0.0.1,algo-2=10.0.0.2",
    "Addresses of hosts whose names do not resolve",
)
TOKEN = Setting(
    "ALGORUN_TOKEN", "", _text, "any text, the same on all hosts",
    "What proves that a host belongs to the job. Unset: the training job's ARN",
)  # fmt: skip
QUIET = Setting(
    "ALGORUN_QUIET",
    False,
    _set,
    "any text",
    "No closing line and no failure on this host's console; set by `algorun simulate`",
)


def hands_over(environ: Mapping[str, str]) -> bool:
    """True where `algorun train` shall leave the job to AWS's own launcher, sagemaker-training."""
    return environ.get(ENGINE.name) == TOOLKIT


# -- waits -----------------------------------------------------------------------------------------------------------

GATE_S = Setting("ALGORUN_GATE_S", 600.0, seconds, POSITIVE, "Wait for all hosts to meet", "s")
PREPARE_S = Setting(
    "ALGORUN_PREPARE_S", 1800.0, seconds, POSITIVE, "A host's download of code and installation of packages", "s"
)
HEARTBEAT_S = Setting(
    "ALGORUN_HEARTBEAT_S", 1.0, seconds, "less than ALGORUN_HEARTBEAT_TIMEOUT_S",
    "Time between two heartbeats, in both directions", "s",
)  # fmt: skip
HEARTBEAT_TIMEOUT_S = Setting(
    "ALGORUN_HEARTBEAT_TIMEOUT_S", 10.0, seconds, POSITIVE,
    "Longest network gap that a job survives. A host counts as lost 2.25 s later", "s",
)  # fmt: skip
BLAME_S = Setting(
    "ALGORUN_BLAME_S", 1.0, seconds, POSITIVE, "After the first failure: time for hosts to report an older one", "s"
)
HANG_S = Setting(
    "ALGORUN_HANG_S", 600.0, _seconds_or_off, f"{POSITIVE}; off: never",
    "Longest time without an optimizer step, or ten times the longest step if that is more", "s",
)  # fmt: skip
RESTART_S = Setting(
    "ALGORUN_RESTART_S",
    60.0,
    seconds,
    POSITIVE,
    "From the end of an attempt's ranks until all hosts are ready again",
    "s",
)
GRACE_S = Setting(
    "ALGORUN_GRACE_S", 100.0, seconds, POSITIVE, "From a stop until SIGKILL. SageMaker itself kills after 120 s", "s"
)
KILL_S = Setting(
    "ALGORUN_KILL_S", 1.5, seconds, POSITIVE, "From SIGTERM to SIGKILL when the job has already failed", "s"
)
LEAVE_S = Setting("ALGORUN_LEAVE_S", 5.0, seconds, POSITIVE, "How long the leader waits for the others to leave", "s")

# -- inside a rank: the launcher sets them; programs of `inside` and the .pth file read them -------------------------

LEFT_OUT_JOB = Setting(
    "ALGORUN_LEFT_OUT_JOB", "", _text, "names", "Variables that all hosts lack because each has 128 KiB or more"
)
LEFT_OUT_HOST = Setting(
    "ALGORUN_LEFT_OUT_HOST", "", _text, "names", "Variables that this host lacks because each has 128 KiB or more"
)
RUN_DIR = Setting("ALGORUN_RUN_DIR", "", _text, "a folder", "The supervisor's sockets and step counters on this host")
SHIM = Setting("ALGORUN_SHIM", "", _text, "a file", "The program that reports a rank's exception and counts its steps")
RANK = Setting(
    "ALGORUN_RANK", "", _text, "a number", "RANK as the launcher gave it; a script's own launcher may change RANK"
)
LOCAL_RANK = Setting("ALGORUN_LOCAL_RANK", "", _text, "a number", "LOCAL_RANK as the launcher gave it")

# -- elsewhere -------------------------------------------------------------------------------------------------------

CUDA_ON_CPU = Setting(
    "ALGORUN_CUDA_ON_CPU", "", _text, "1, script",
    "Without a GPU, devices named cuda are the CPU in scripts that import smdistributed. `script`: and "
    "`torch.cuda.is_available()` is true for the script",
)  # fmt: skip
IMAGE = Setting(
    "ALGORUN_IMAGE", "algorun:cpu", _text, "an image", "The image that compose starts and the benchmarks measure"
)

WAITS = (
    *(GATE_S, PREPARE_S, HEARTBEAT_S, HEARTBEAT_TIMEOUT_S, BLAME_S, HANG_S, RESTART_S, GRACE_S, KILL_S, LEAVE_S),
)  # fmt: skip
GROUPS: Mapping[str, tuple[Setting[object], ...]] = {
    "The launcher": (ENGINE, SLOTS, RESTARTS, SHARE_NOTHING, EQUAL_SLOTS, PORT, ADDRESSES, TOKEN, QUIET),
    "Waits of the launcher": WAITS,
    "Inside a rank": (LEFT_OUT_JOB, LEFT_OUT_HOST, RUN_DIR, SHIM, RANK, LOCAL_RANK),
    "smdistributed": (CUDA_ON_CPU,),
    "docker/compose.yaml and bench": (IMAGE,),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Every wait of a job, in seconds. Each field is the setting of the same name."""

    gate_s: float = GATE_S.default
    prepare_s: float = PREPARE_S.default
    heartbeat_s: float = HEARTBEAT_S.default
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S.default
    blame_s: float = BLAME_S.default
    hang_s: float = HANG_S.default
    grace_s: float = GRACE_S.default
    kill_s: float = KILL_S.default
    restart_s: float = RESTART_S.default
    leave_s: float = LEAVE_S.default

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Limits:
        """The limits that the environment sets.

        Raises UserError on a value that is not a positive number, and if hosts would count as lost between two signs of
        life.
        """
        limits = cls(
            gate_s=GATE_S.read(environ),
            prepare_s=PREPARE_S.read(environ),
            heartbeat_s=HEARTBEAT_S.read(environ),
            heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S.read(environ),
            blame_s=BLAME_S.read(environ),
            hang_s=HANG_S.read(environ),
            grace_s=GRACE_S.read(environ),
            kill_s=KILL_S.read(environ),
            restart_s=RESTART_S.read(environ),
            leave_s=LEAVE_S.read(environ),
        )
        if limits.heartbeat_s >= limits.heartbeat_timeout_s:
            raise UserError(
                HEARTBEAT_S.name,
                f"{limits.heartbeat_s:g} s between two signs of life, and a host is lost after {limits.heartbeat_timeout_s:g}",
                allowed=f"less than {HEARTBEAT_TIMEOUT_S.name}",
            )
        return limits


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Where the hosts of a job meet, and what they prove themselves with.

    `addresses` maps hosts to IP addresses where names do not resolve. `own_token`: the user has set the token; else it
    is the training job's ARN, which others in the network may know.
    """

    addresses: Mapping[str, str]
    port: int
    token: str
    own_token: bool

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ControlSettings:
        """The settings of this environment. Raises UserError."""
        token = TOKEN.read(environ)
        return cls(
            addresses=ADDRESSES.read(environ),
            port=PORT.read(environ),
            token=token or environ.get("TRAINING_JOB_ARN", ""),
            own_token=bool(token),
        )
