"""What a report shows: the input of the page, whoever collected it. Pure values; times are seconds since 1970."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

HOUR_S = 3600.0
MOST_POINTS = 12  # of a sweep, whose curves one chart shows: more lines hide each other
INTERRUPTED = "Interrupted"  # the phase in which AWS has taken spot instances back


class Axis(StrEnum):
    """What the x values of series count."""

    TIME = "time"  # seconds since the job's begin
    ORDER = "order"  # 1 for the first value that a source printed, 2 for the next
    STEP = "step"  # of the training
    EPOCH = "epoch"


class MetricPlace(StrEnum):
    """What lines that print a metric are about: the training up to a step, an epoch, or neither is named."""

    STEP = "step"
    EPOCH = "epoch"
    NONE = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Values from one source: a host, or one rank of it. `x` never decreases; all numbers are finite."""

    label: str  # algo-1, or `algo-1 rank 3` if several ranks of the host print the metric
    x: Sequence[float]
    values: Sequence[float]  # as many as `x`
    numbers: Sequence[float] = ()  # of the step or epoch of each value's line; () if lines name none
    epochs: Sequence[float] = ()  # of each line that names a step; NaN without

    def __post_init__(self) -> None:
        if len(self.x) != len(self.values):
            raise ValueError(f"{self.label}: {len(self.x)} x values for {len(self.values)} values")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure that the job printed. `series` has at least one value.

    A step's line and an epoch's have means over different stretches: printed by both, a figure is two metrics of one name.
    """

    name: str
    regex: str
    series: tuple[Series, ...]
    place: MetricPlace = MetricPlace.NONE  # what its lines are about
    is_part: bool = False  # lines of another place print the figure as well
    unreadable: int = 0  # texts that the regular expression found and that are no finite number
    example: str = ""  # one of these texts

    @property
    def title(self) -> str:
        """`train:loss by step`; the name alone, if all lines are of one place."""
        return (
            f"{self.name} by {self.place.value}" if self.is_part and self.place is not MetricPlace.NONE else self.name
        )


@dataclass(frozen=True, slots=True)
class Utilization:
    """How busy one kind of hardware was, in percent of the whole host: 0 to 100 (`normalized`)."""

    name: str  # CPU, memory, GPU, GPU memory, disk
    series: tuple[Series, ...]  # x: seconds since the job's begin


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the hosts moved over the network, or from and to their disks, in MB (1,000,000 bytes) per second."""

    name: str  # network, disk traffic
    series: tuple[Series, ...]  # x: seconds since the job's begin


@dataclass(frozen=True, slots=True)
class Window:
    """What the ranks of a host did from one report of theirs to another. Times are seconds since the job's begin.

    `shares[r][a]` is the share of the time (0 to 1) that rank r spent in activity a; together they are at most 1.
    """

    begin: float
    end: float
    steps: int  # of the rank that made most
    shares: tuple[tuple[float, ...], ...]
    reports: int = 1  # how many are merged in it


@dataclass(frozen=True, slots=True)
class HostWindows:
    """What the ranks of one host did over time. `ranks` are their numbers in the job."""

    host: str
    ranks: tuple[int, ...]
    windows: tuple[Window, ...]  # in their order


@dataclass(frozen=True, slots=True)
class ReportedActivities:
    """What all ranks did over time. `names`: of the activities, in the order of their shares."""

    names: tuple[str, ...] = ()
    hosts: tuple[HostWindows, ...] = ()
    slow: tuple[tuple[float, str], ...] = ()  # verdicts about slow ranks, each with its second since the job's begin


@dataclass(frozen=True, slots=True)
class ReportedPhase:
    """A stretch of a job's time. `end` is None while it lasts."""

    name: str
    begin: float
    end: float | None


@dataclass(frozen=True, slots=True)
class ReportedAttempt:
    """One try of the launcher at running all ranks. `cause`: why it ended, "" for the last one of a job that is fine."""

    number: int  # from 1
    cause: str
    begin: float | None = None


@dataclass(frozen=True, slots=True)
class ReportedHost:
    """A host of the job. `starts`: how often its container was started; more than once after a spot interruption."""

    name: str
    starts: int
    lines: int  # that it printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the job costs. `billable_s` counts for each host."""

    hosts: int
    billable_s: float | None
    training_s: float | None = None  # with `billable_s` it tells what spot instances saved
    rate: float | None = None  # for one host and hour; None: the price is unknown

    @property
    def amount(self) -> float | None:
        """In the currency of the rate; None if the price or the billable time is unknown."""
        if self.rate is None or self.billable_s is None:
            return None
        return self.billable_s * self.hosts * self.rate / HOUR_S

    @property
    def saving(self) -> float | None:
        """The share that spot instances saved, 0 to 1. None if unknown."""
        if self.billable_s is None or not self.training_s or self.billable_s > self.training_s:
            return None
        return 1 - self.billable_s / self.training_s


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One job of a sweep. `value`: its result, None without one."""

    job: str
    status: str
    parameters: tuple[str, ...]  # as many as the sweep has names
    value: float | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The jobs of a sweep, the best one first."""

    names: tuple[str, ...]  # of the parameters
    metric: str  # the one that orders the rows
    rows: tuple[SweepRow, ...]
    axis: Axis = Axis.ORDER  # of the metrics
    metrics: tuple[Metric, ...] = ()  # of several jobs, a series for each
    left_out: int = 0  # jobs without a series


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The last lines of a host."""

    host: str
    lines: tuple[str, ...]
    skipped: int  # lines before them


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Everything about one job that the page shows. What is unknown is empty or None; the page says so."""

    job: str
    status: str = ""  # Completed, Failed, Stopped, InProgress, .. as SageMaker calls them
    kind: str = ""  # training or processing
    instance: str = ""
    host_kind: str = "instances"  # or what a job on the user's machine runs on, such as `simulated hosts`
    closing_line: str = ""  # the launcher's last line
    root_cause: str = ""
    created: float | None = None
    ended: float | None = None
    hosts: tuple[ReportedHost, ...] = ()
    phases: tuple[ReportedPhase, ...] = ()
    retries: int = 0  # how often SageMaker has started the job again after an error of its own
    attempts: tuple[ReportedAttempt, ...] = ()
    axis: Axis = Axis.ORDER  # of the metrics
    metrics: tuple[Metric, ...] = ()
    silent_metrics: tuple[tuple[str, str], ...] = ()  # name and regular expression of those that no line has
    activities: ReportedActivities = ReportedActivities()
    utilization: tuple[Utilization, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    results: tuple[tuple[str, str], ...] = ()  # names and figures that the program left in summary.json
    ran: tuple[tuple[str, str], ...] = ()  # command, commit, software, image and hardware, as far as they are known
    sweep: Sweep | None = None
    cost: Cost | None = None
    links: tuple[tuple[str, str], ...] = ()  # pages of AWS's console: `console` and `logs`, and their addresses
    excerpts: tuple[Excerpt, ...] = ()
    notices: tuple[str, ...] = ()  # what the reader of the page should know about its sources

    @property
    def host_count(self) -> int:
        """How many hosts the job had; 0 if unknown. A host that printed nothing has no log."""
        return max(self.cost.hosts if self.cost else 0, len(self.hosts))

    @property
    def has_failed(self) -> bool:
        """True if the job ended otherwise than well."""
        return self.status in ("Failed", "Stopped") or bool(self.root_cause)

    @property
    def interruptions(self) -> int:
        """How often AWS has taken the spot instances back."""
        return sum(each.name == INTERRUPTED for each in self.phases)


def normalized(percent: Sequence[float], units: int) -> list[float]:
    """Percent of the whole host, from CloudWatch's percent of one unit.

    CloudWatch's CPUUtilization of a host reaches 100 times its cores, GPUUtilization and GPUMemoryUtilization 100
    times its GPUs. `units`: the host's cores or GPUs; 1 for memory and disk. Raises ValueError if it is below 1.
    """
    if units < 1:
        raise ValueError(f"{units} cores or GPUs; allowed: 1 or more")
    return [value / units for value in percent]
