"""The closing table: where a host's wall time went, as text and as the values of result.json."""

from __future__ import annotations

from collections.abc import Mapping

from algorun.common.fast_dataclasses import dataclass, field

from .clock import TRAINING, Work

LEAST_SHARE = 0.001  # of the wall time: a smaller row goes into "rest"
SLOW_DATA = 0.1  # of a rank's activities: from this share of waiting for batches on the table says so
LEAST_S = 0.05  # seconds: below this a row would show 0.0

LABELS = {
    "launcher": "start of the launcher",
    "prepare": "preparation",
    "fetch": "fetching the code",
    "install": "installing",
    "unpack": "unpacking channels",
    "gate": "waiting until all hosts are ready",
    "check": "checking the entrypoint's options",
    "program": "the program; its steps were not seen",
    "import": "starting processes, importing",
    "first_step": "from the imports to the end of the first step",
    "training": "training: all steps after the first",
    "after_steps": "after the last step",
    "lost_attempts": "attempts that failed",
    "restarts": "restarting",
    "stopping": "stopping",
    "waiting": "waiting for the ranks of other hosts",
    "leaving": "leaving",
}


@dataclass(frozen=True, slots=True)
class Times:
    """One host's time. `seconds` by cause add up to the wall time."""

    seconds: Mapping[str, float]
    steps: int  # optimizer steps of the last attempt, 0 where nobody counts
    lost_steps: int  # of the failed attempts
    hosts: int
    price: float = 0.0  # of one host for one hour, 0.0 unknown
    activities: Mapping[str, float] = field(default_factory=dict)  # seconds of a rank, as far as they are seen
    on_gpu: bool = False  # these are seconds of the ranks' GPUs
    beside: float = 0.0  # seconds of evaluations and saves in training, as far as they are seen
    work: Work = field(default_factory=Work)  # of this host's ranks in training
    world_size: int = 0
    peak_flops: float = 0.0  # of the GPUs of this host's ranks, operations per second; 0.0 unknown

    @property
    def wall_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float | None:
        """The share of the wall time in steps of the last attempt (0 to 1), None where no steps were seen.

        The first step is left out: its time cannot be told from what went before it. Steps of a failed attempt that a
        checkpoint kept are left out as well: which ones it kept is not known here. So are all evaluations and saves that
        are seen.
        """
        if not self.steps or not self.wall_s:
            return None
        return self.steps_s / self.wall_s

    @property
    def steps_s(self) -> float:
        """Seconds of training, without the evaluations and saves that are seen."""
        return max(0.0, self.seconds.get(TRAINING, 0.0) - self.beside)

    @property
    def samples_per_s(self) -> float | None:
        """Of all ranks, if those of the other hosts do as much as this host's; None if the program does not say."""
        return self._rate(self.work.samples)

    @property
    def tokens_per_s(self) -> float | None:
        """As `samples_per_s`."""
        return self._rate(self.work.tokens)

    def _rate(self, amount: float) -> float | None:
        if not amount or not self.steps_s or not self.work.ranks:
            return None
        return amount / self.steps_s * max(1.0, self.world_size / self.work.ranks)

    @property
    def mfu(self) -> float | None:
        """The operations of the model per second as a share (0 to 1) of what the GPUs of this host's ranks could do at most;
        None if either is not known."""
        if not self.work.flops or not self.steps_s or not self.peak_flops:
            return None
        return self.work.flops / self.steps_s / self.peak_flops

    @property
    def data_wait(self) -> float | None:
        """The share of its activities (0 to 1) in which a rank waited for batches, None if none are seen."""
        said = sum(self.activities.values())
        return self.activities.get("data", 0.0) / said if said else None

    @property
    def cost(self) -> float | None:
        """What all hosts cost for this host's wall time, None without a price."""
        return self.price * self.hosts * self.wall_s / 3600 if self.price else None

    def to_json(self) -> dict[str, object]:
        """The value of `times` in result.json. What is not known is left out."""
        found: dict[str, object] = {
            "wall_s": round(self.wall_s, 3),
            "seconds": {cause: round(spent, 3) for cause, spent in self.seconds.items()},
        }
        if self.steps:
            found["steps"] = self.steps
        if self.activities:
            found["activities"] = {name: round(spent, 3) for name, spent in self.activities.items()}
            found["activities_of"] = "GPU" if self.on_gpu else "CPU"
        if self.lost_steps:
            found["lost_steps"] = self.lost_steps
        if self.goodput is not None:
            found["goodput"] = round(self.goodput, 4)
        for name, value in (
            ("samples_per_s", self.samples_per_s),
            ("tokens_per_s", self.tokens_per_s),
            ("mfu", self.mfu),
        ):
            if value is not None:
                found[name] = round(value, 4)
        if self.cost is not None:
            found["cost"] = round(self.cost, 4)
        return found


def text(times: Times, host: str, data: str = "", slow: str = "", above: str = "") -> str:
    """The table of one host: a heading, one row for each cause, and what follows from them. Lines without an end.

    `data` says that ranks waited for batches, and what helps; `slow` names ranks that the others waited for; `above` says
    what ranks spent more on than the others.
    """
    wall, rest = times.wall_s, 0.0
    lines = [f"algorun: time of {host}: {wall:.1f} s"]
    for cause, spent in times.seconds.items():
        if spent < LEAST_SHARE * wall or spent < LEAST_S:
            rest += spent
        else:
            lines.append(_row(spent, wall, LABELS[cause]))
    if rest >= LEAST_S:
        lines.append(_row(rest, wall, "rest"))
    if times.goodput is not None:
        lines.append(f"  goodput {times.goodput:.1%}{_steps(times)}")
    if rates := _rates(times):
        lines.append(f"  trained {rates}")
    if said := _said(times):
        whose = "a rank's GPU" if times.on_gpu else "a rank"
        lines.append(f"  {whose} spent {said}")
    if data:
        lines.append(f"  {data}")
    elif times.data_wait is not None and times.data_wait >= SLOW_DATA:
        lines.append(f"  {times.data_wait:.0%} of that was waiting for batches; see docs/time.md")
    if slow:
        lines.append(f"  {slow}")
    if above:
        lines.append(f"  above the other ranks: {above}")
    if times.lost_steps:
        lines.append(f"  {times.lost_steps} steps in failed attempts; checkpoints may have kept some of them")
    if times.cost is not None:
        plural = "host" if times.hosts == 1 else "hosts"
        lines.append(
            f"  cost {times.cost:.4g}: {times.hosts} {plural}, {wall / 3600:.4g} h, {times.price:g} per host and hour"
        )
    return "\n".join(lines)


def _row(spent: float, wall: float, label: str) -> str:
    return f"  {spent:9.1f} s {spent / wall:6.1%}  {label}"


def _said(times: Times) -> str:
    """The activities that show, the longest first."""
    found = sorted(times.activities.items(), key=lambda item: -item[1])
    return ", ".join(f"{spent:.1f} s in {name}" for name, spent in found if spent >= LEAST_S)


def _rates(times: Times) -> str:
    found = [(times.samples_per_s, "samples/s"), (times.tokens_per_s, "tokens/s")]
    rates = [f"{rate:.1f} {unit}" for rate, unit in found if rate is not None]
    return ", ".join([*rates, *([f"MFU {times.mfu:.1%}"] if times.mfu is not None else [])])


def _steps(times: Times) -> str:
    training = times.seconds.get(TRAINING, 0.0)
    if times.steps < 2 or not training:
        return ""
    return f", {times.steps} steps, {training / (times.steps - 1):.3g} s a step"
