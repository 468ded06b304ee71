"""Every environment variable `ALGORUN_*`: name, default, allowed values, meaning. The launcher reads them here only.

To add one: declare it below, put it into its group, read it with `NAME.read(environ)`, and run
`python docs/settings_page.py > docs/settings.md`. An empty variable counts as unset. Programs inside a rank cannot
import the launcher and read their variables themselves; they are declared here for the docs ("Inside a rank").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from algorun.common import REQUEST_FORMAT as HIGHEST_FORMAT
from algorun.common.fast_dataclasses import dataclass

from .engine import Engine
from .setting_values import (
    LEAST_STORE_MB,
    WINDOW,
    expression,
    expressions,
    is_one,
    is_set,
    measurement,
    name_list,
    object_store_mb,
    port,
    price,
    request_format,
    restarts,
    seconds_or_off,
    switch,
    text_of,
    unless_off,
    window,
    word_of,
    words_of,
)  # fmt: skip
from .values import addresses, count, seconds

Value = TypeVar("Value", covariant=True)

TOOLKIT = "toolkit"  # ALGORUN_ENGINE: AWS's own launcher
CONTROL_PORT = 29600  # below the ephemeral range, away from torchrun's 29400 and 29500


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """One environment variable."""

    name: str
    default: Value
    parse: Callable[[str, str], Value]  # parse(name, text) returns the value or raises UserError
    allowed: str
    meaning: str
    unit: str = ""  # "s" for seconds

    def read(self, environ: Mapping[str, str]) -> Value:
        """The value in this environment; the default if the variable is unset or empty. Raises UserError."""
        text = environ.get(self.name, "")
        return self.parse(self.name, text) if text else self.default


# -- the launcher ----------------------------------------------------------------------------------------------------

POSITIVE = "a number above 0"
ENGINE: Setting[Engine | None] = Setting(
    "ALGORUN_ENGINE", None, Engine.of, f"{', '.join(Engine)}; toolkit",
    "How ranks are started; `--engine` overrides it. Unset: the engine of the job's distribution, else native. "
    "`toolkit` hands `algorun train` to AWS's sagemaker-training",
)  # fmt: skip
SLOTS: Setting[int | None] = Setting(
    "ALGORUN_SLOTS", None, count, "1 to 4096", "Number of ranks on each host; `-j` and `--slots` override it"
)
RESTARTS: Setting[int] = Setting(
    "ALGORUN_RESTARTS",
    0,
    restarts,
    "0 to 1000",
    "Restart a failed job up to this many times; `--restarts` and the hyperparameter `algorun_restarts` override it",
)
SHARE_NOTHING = Setting("ALGORUN_SHARE_NOTHING", False, is_one, "1", "Run the program once per host, without ranks")
EQUAL_SLOTS = Setting(
    "ALGORUN_EQUAL_SLOTS", False, is_one, "1", "End the job with exit code 64 if hosts have different numbers of ranks"
)
PORT = Setting(
    "ALGORUN_CONTROL_PORT", CONTROL_PORT, port, "1 to 65535", "TCP port of the control channel on the leader"
)
ADDRESSES: Setting[Mapping[str, str]] = Setting(
    "ALGORUN_ADDRESSES",
    {},
    addresses,
    "algo-1=10.0.0.1,algo-2=10.0.0.2",
    "Addresses of hosts whose names do not resolve",
)
TOKEN = Setting(
    "ALGORUN_TOKEN", "", text_of, "any text, the same on all hosts",
    "Secret by which hosts prove that they belong to the job. Unset: the training job's ARN",
)  # fmt: skip
EXTRACT: Setting[tuple[str, ...]] = Setting(
    "ALGORUN_EXTRACT", (), name_list, 'a list such as ["train"]',
    "Channels (in a Processing job: inputs) whose tar and zip files are unpacked on every host before the ranks start; the "
    "hyperparameter `algorun_extract` overrides it",
)  # fmt: skip
TF_CONFIG: Setting[bool | None] = Setting(
    "ALGORUN_TF_CONFIG", None, switch, "1, 0",
    "1: every rank gets `TF_CONFIG` for TensorFlow's MultiWorkerMirroredStrategy. It overrides the hyperparameter "
    "`sagemaker_multi_worker_mirrored_strategy_enabled`",
)  # fmt: skip
REQUEST_FORMAT: Setting[int | None] = Setting(
    "ALGORUN_REQUEST_FORMAT", None, request_format, f"1 to {HIGHEST_FORMAT}",
    "Format of the request by which algorun's client created the job; the client sets it. A newer image knows more formats",
)  # fmt: skip
CODE_COMMIT = Setting(
    "ALGORUN_CODE_COMMIT", "", text_of, "any text",
    "The commit of the code, which the page of `algorun report` shows. `submit`, `run` and `simulate` set it where the code's "
    "folder lies in a clone of git",
)  # fmt: skip
QUIET = Setting(
    "ALGORUN_QUIET", False, is_set, "any text",
    "Print no closing line and no failure on this host; `algorun simulate` sets it",
)  # fmt: skip
WHERE = Setting(
    "ALGORUN_WHERE", "", word_of("local"), "local",
    "Where the job runs, for commands that the log shows; `submit --where local` sets it for its hosts. Unset: on AWS",
)  # fmt: skip
PRICE = Setting(
    "ALGORUN_PRICE", 0.0, price, "a number above 0",
    "Price of one host for one hour, in your currency: the closing table then says what the job cost. Unset: no cost",
)  # fmt: skip
ENVIRONMENTS = Setting(
    "ALGORUN_ENVIRONMENTS", "", text_of, "a folder",
    "Where jobs on a machine of yours keep environments for their requirements: pip then installs nothing into the environment "
    "of the launcher. `algorun simulate` (default `~/.algorun/environments`) and `submit --where local` (default: in the folder "
    "of the jobs) set it for their hosts. Unset: the launcher's environment is the job's own, as in a container",
)  # fmt: skip
FIGURES = Setting(
    "ALGORUN_FIGURES", True, unless_off, "off",
    "off: do not measure how busy the hosts are, CPUs, memory, disks, network and GPUs. Unset: measure them",
)  # fmt: skip
HOOKS = Setting(
    "ALGORUN_HOOKS", True, unless_off, "off",
    "off: put nothing around torch's functions; of a script of your own only the steps are then seen, not its activities. Unset: "
    "see both",
)  # fmt: skip
PREFLIGHT: Setting[tuple[str, float] | None] = Setting(
    "ALGORUN_PREFLIGHT", None, measurement, "measure, strict, each also with seconds: measure:20",
    "Before the first attempt the ranks measure their GPUs, hosts and links, for 60 seconds or for those given, and name what is odd, "
    "as the entrypoint `measure` does. strict: then the job ends with 69. Unset: nothing is measured",
)  # fmt: skip
TRACKERS: Setting[tuple[str, ...]] = Setting(
    "ALGORUN_TRACKERS", (), words_of("wandb", "mlflow", "tensorboard"), "wandb, mlflow, tensorboard, separated by commas",
    "Experiment trackers that the first host feeds with the job's metrics, steps and figures, in one run over attempts, spot "
    "interruptions and later jobs with the same checkpoints ([trackers](time.md#feed-experiment-trackers))",
)  # fmt: skip
METRICS: Setting[Mapping[str, str]] = Setting(
    "ALGORUN_METRICS", {}, expressions, "a JSON object of expressions, each with one group for the value, and perhaps a group `step`",
    "Numbers in the lines that rank 0 prints, for trackers: the metric's name, and the expression whose group is its value",
)  # fmt: skip
HOLD_S: Setting[float] = Setting(
    "ALGORUN_HOLD_ON_FAILURE_S", 0.0, seconds, POSITIVE,
    "After a failure keep every host for this long, as its ranks left it, so that `algorun shell` can look. A stop ends it. Unset: the "
    "job ends at once", "s",
)  # fmt: skip
NONFINITE = Setting(
    "ALGORUN_NONFINITE", "warn", word_of("warn", "end", "skip", "off"), "warn, end, skip, off",
    "What follows the first loss, gradient or weight of a script that is not finite. warn: a line on all hosts names rank, step and "
    "parameter. end: the job ends with that line as its failure. skip: an optimizer step is left out on all ranks if a gradient of one "
    "is not finite. off: nobody looks. `ddp` and `pipeline` end at a loss that is not finite in any case",
)  # fmt: skip
RAY_OBJECT_STORE_MB: Setting[int | None] = Setting(
    "ALGORUN_RAY_OBJECT_STORE_MB", None, object_store_mb, f"{LEAST_STORE_MB} to what is free in /dev/shm",
    "Size of Ray's object store on each host, in MiB. Unset: 30 % of the host's memory, at most 80 % of what is free in "
    "/dev/shm and at most 200 GB", "MiB",
)  # fmt: skip


PROGRESS = Setting(
    "ALGORUN_PROGRESS", "", expression, "a regular expression of Python",
    "Lines of ranks in which it is found count as progress, such as `step [0-9]+`. Once one has matched, no other line of that rank "
    "counts: it stands still if none matches for `ALGORUN_HANG_S`. Unset: every line counts",
)  # fmt: skip
TRACE_STEPS: Setting[tuple[int, int] | None] = Setting(
    "ALGORUN_TRACE_STEPS", None, window, WINDOW,
    "Trace these steps of every rank: from the end of the step before the first one to the end of the last one. Unset: no trace",
)  # fmt: skip


def hands_over(environ: Mapping[str, str]) -> bool:
    """True if `algorun train` must hand the job over to AWS's own launcher, sagemaker-training."""
    return environ.get(ENGINE.name) == TOOLKIT


# -- waits -----------------------------------------------------------------------------------------------------------

GATE_S = Setting("ALGORUN_GATE_S", 600.0, seconds, POSITIVE, "Longest wait until all hosts have connected", "s")
PREPARE_S = Setting(
    "ALGORUN_PREPARE_S",
    1800.0,
    seconds,
    POSITIVE,
    "Longest time in which a host fetches code and installs packages",
    "s",
)
START_S = Setting(
    "ALGORUN_START_S", 600.0, seconds, POSITIVE,
    "Longest time in which torchrun or mpirun starts the ranks of a host, or Ray its nodes. What a rank does after its start "
    "does not count",
    "s",
)  # fmt: skip
HEARTBEAT_S = Setting(
    "ALGORUN_HEARTBEAT_S", 1.0, seconds, "less than ALGORUN_HEARTBEAT_TIMEOUT_S",
    "Time between two heartbeats, in both directions", "s",
)  # fmt: skip
HEARTBEAT_TIMEOUT_S = Setting(
    "ALGORUN_HEARTBEAT_TIMEOUT_S", 10.0, seconds, POSITIVE,
    "Longest network gap that a job survives; a host counts as lost 2.25 s after that", "s",
)  # fmt: skip
BLAME_S = Setting(
    "ALGORUN_BLAME_S", 1.0, seconds, POSITIVE, "After the first failure: wait for reports of an earlier one", "s"
)
HANG_S = Setting(
    "ALGORUN_HANG_S", 600.0, seconds_or_off, f"{POSITIVE}; off: never",
    "A rank hangs after this time without an optimizer step, or after ten times its longest step if that is more. Without such "
    "steps a job hangs if no rank prints, reports progress or works for this time. off: for programs that wait for work by design, "
    "such as servers", "s",
)  # fmt: skip
TIMES_S = Setting(
    "ALGORUN_TIMES_S", 10.0, seconds_or_off, f"{POSITIVE}; off: never",
    "Time between two reports of what ranks do and how busy their host is. A rank that is slow in three of them in a row is "
    "named. off: no warnings of slow ranks, batches, GPUs, memory and disks", "s",
)  # fmt: skip
RESTART_S = Setting(
    "ALGORUN_RESTART_S",
    60.0,
    seconds,
    POSITIVE,
    "Before a restart: longest wait from the end of all ranks until all hosts are ready",
    "s",
)
GRACE_S = Setting(
    "ALGORUN_GRACE_S", 100.0, seconds, POSITIVE, "Time from a stop to SIGKILL. SageMaker itself kills after 120 s", "s"
)
KILL_S = Setting("ALGORUN_KILL_S", 1.5, seconds, POSITIVE, "Time from SIGTERM to SIGKILL if the job has failed", "s")
LEAVE_S = Setting(
    "ALGORUN_LEAVE_S",
    5.0,
    seconds,
    POSITIVE,
    "At the end: longest wait of the leader for the other hosts to leave",
    "s",
)

# -- inside a rank: set by the launcher, read by programs of `inside` and by the .pth file ---------------------------

LEFT_OUT_JOB = Setting(
    "ALGORUN_LEFT_OUT_JOB", "", text_of, "names", "Variables that no rank gets, because each is 128 KiB or larger"
)
LEFT_OUT_HOST = Setting(
    "ALGORUN_LEFT_OUT_HOST", "", text_of, "names", "Variables that no rank of this host gets, for the same reason"
)
RUN_DIR = Setting("ALGORUN_RUN_DIR", "", text_of, "a folder", "The supervisor's sockets and step counters on this host")
SHIM = Setting(
    "ALGORUN_SHIM",
    "",
    text_of,
    "a file",
    "The program that reports a rank's exception and counts its steps: that of the launcher's own installation, no other runs",
)
RANK = Setting(
    "ALGORUN_RANK", "", text_of, "a number", "RANK as the launcher set it; a launcher inside the script may change RANK"
)
STACKS = Setting(
    "ALGORUN_STACKS",
    "",
    text_of,
    "a folder",
    "In the workers of Ray's cluster: where they write their stacks if they hang",
)
HELD_COMMAND = Setting(
    "ALGORUN_COMMAND", "", text_of, "a command line",
    "The command of a rank, in a shell that `algorun shell` has opened on a host that is held; the launcher sets it",
)  # fmt: skip
LOCAL_RANK = Setting("ALGORUN_LOCAL_RANK", "", text_of, "a number", "LOCAL_RANK as the launcher set it")
CHECKPOINT_DIR = Setting(
    "ALGORUN_CHECKPOINT_DIR",
    "",
    text_of,
    "a folder",
    "The folder of checkpoints, which SageMaker keeps: /opt/ml/checkpoints",
)
TENSORBOARD_DIR = Setting(
    "ALGORUN_TENSORBOARD_DIR",
    "",
    text_of,
    "a folder",
    "The folder of TensorBoard's event files, which SageMaker copies to S3 while the job runs; `submit --tensorboard` sets it",
)
# -- elsewhere -------------------------------------------------------------------------------------------------------

CUDA_ON_CPU = Setting(
    "ALGORUN_CUDA_ON_CPU", "", word_of("0", "1", "script", "strict"), "0, 1, script, strict",
    "Without a GPU: scripts that import smdistributed use the CPU for devices named cuda. With `script`, "
    "`torch.cuda.is_available()` is also true for the script. With `strict`, in any script, devices named cuda compute on "
    "the CPU and refuse what a GPU refuses (docs/scripts.md)",
)  # fmt: skip
IMAGE = Setting("ALGORUN_IMAGE", "algorun:cpu", text_of, "an image", "The image that compose starts")

WAITS = (
    *(GATE_S, PREPARE_S, START_S, HEARTBEAT_S, HEARTBEAT_TIMEOUT_S, BLAME_S, HANG_S, TIMES_S, RESTART_S, GRACE_S, KILL_S, LEAVE_S),
)  # fmt: skip
GROUPS: Mapping[str, tuple[Setting[object], ...]] = {
    "The launcher": (
        *(ENGINE, SLOTS, RESTARTS, SHARE_NOTHING, EQUAL_SLOTS, PORT, ADDRESSES, TOKEN, EXTRACT, TF_CONFIG),
        *(
            REQUEST_FORMAT,
            CODE_COMMIT,
            QUIET,
            WHERE,
            PRICE,
            ENVIRONMENTS,
            FIGURES,
            HOOKS,
            HOLD_S,
            NONFINITE,
            PREFLIGHT,
            PROGRESS,
            TRACE_STEPS,
            TRACKERS,
            METRICS,
            RAY_OBJECT_STORE_MB,
        ),
    ),
    "Waits of the launcher": WAITS,
    "Inside a rank": (
        LEFT_OUT_JOB,
        LEFT_OUT_HOST,
        CHECKPOINT_DIR,
        TENSORBOARD_DIR,
        RUN_DIR,
        SHIM,
        STACKS,
        RANK,
        LOCAL_RANK,
        HELD_COMMAND,
    ),
    "smdistributed": (CUDA_ON_CPU,),
    "docker/compose.yaml": (IMAGE,),
}
