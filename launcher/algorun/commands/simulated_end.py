"""How a simulated job has ended, by what its hosts left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from algorun.common.errors import ExitCode
from algorun.common.fast_dataclasses import dataclass
from algorun.common.plain_text import plain
from algorun.job.paths import Paths
from algorun.outcome import report


@dataclass(frozen=True, slots=True)
class SimulatedEnd:
    """The end of a job. `about` are lines for people, `line` is the closing line."""

    code: int
    line: str
    about: tuple[str, ...]
    failure: str = ""  # the text of output/failure, "" without one
    failed: tuple[str, int] | None = None  # host and rank of the root cause, if it is a rank's
    failed_ranks: tuple[tuple[str, int], ...] = ()  # host and rank of all that have failed in the last attempt
    is_complete: bool = True  # no host is missing in `failed_ranks`
    table: str = ""  # where the time of a failed job went

    @property
    def about_lines(self) -> list[str]:
        """What stands between the cause and the closing line."""
        return [*([self.table] if self.table else []), *(f"algorun: {line}" for line in self.about)]

    @property
    def failure_lines(self) -> list[str]:
        """The text of the failure. As in host/run.py only the first line is the launcher's."""
        first, *rest = plain(self.failure).rstrip().split("\n")
        return [f"algorun: {first}", *(f"| {line}" for line in rest)]


def read_ends(hosts: Sequence[str], trees: Mapping[str, Path], codes: Sequence[int], seconds: float) -> SimulatedEnd:
    """The end of the job whose hosts have left with `codes`."""
    leader = Paths(trees[hosts[0]])
    results = [report.read_result(Paths(tree)) for tree in trees.values()]
    line = next((str(result["line"]) for result in results if "line" in result), "")
    # The verdict that surviving hosts report says more than the 137 of a killed host.
    judged = [result["code"] for result in results if isinstance(result.get("code"), int)]
    code = next((int(str(code)) for code in judged if code), next((code for code in codes if code), int(ExitCode.OK)))
    if code and line.startswith("ok"):
        line = f"failed nnodes={len(hosts)} code={code} a host failed after the job's end"
    artifacts = sorted(path.name for path in leader.model.iterdir()) if leader.model.is_dir() else []
    about = (
        f"hosts left with {', '.join(map(str, codes))} after {seconds:.1f} s",
        *([f"artifacts in {leader.model}: {plain(', '.join(artifacts))}"] if artifacts else []),
        f"logs and metrics in {leader.output_data}",
    )
    failures = [Paths(tree).failure for tree in trees.values() if Paths(tree).failure.is_file()]
    failure = failures[0].read_text(encoding="utf-8", errors="replace") if failures and code else ""
    closing = plain(line) or f"failed nnodes={len(hosts)} code={code}"
    return SimulatedEnd(
        code,
        closing,
        about,
        failure,
        next((found for found in map(report.failed_rank, results) if found), None),
        tuple((host, rank) for host, each in zip(trees, results, strict=True) for rank in report.failed_ranks(each)),
        all(results),
        plain(next((str(each["table"]) for each in results if "table" in each), "")),
    )
