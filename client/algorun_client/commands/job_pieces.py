"""What a job may have left, and how each piece comes home. `fetch` brings all of it, `report` what its page needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from algorun_client.aws import host_figures
from algorun_client.aws.api import Target
from algorun_client.aws.job_cost import rate
from algorun_client.aws.job_state import JobState
from algorun_client.common.errors import ApiError
from algorun_client.common.progress import Progress
from algorun_client.common.refusals import Refusal, refusal
from algorun_client.connection import Site
from algorun_client.fetch import metrics_file
from algorun_client.fetch.archives import fetch_archive
from algorun_client.fetch.folders import fetch_folder
from algorun_client.fetch.in_place import refuse_link
from algorun_client.fetch.log_files import write_logs
from algorun_client.fetch.metrics_file import HostUnits, write_metrics
from algorun_client.follow.log_reader import LogLine, LogReader
from algorun_client.follow.outcome import root_cause
from algorun_client.follow.view import state_json
from algorun_client.request.model import Kind

LOCAL_PERIOD_S = 1  # this machine measures its hosts every second


@dataclass(frozen=True, slots=True)
class JobPiece:
    """Something that a job may have left. `fetch` returns the number of files; 0 or NotFound: nothing is there."""

    what: str
    folder: Path
    fetch: Callable[[], int]
    uri: str = ""  # where it lies in S3

    @property
    def is_whole(self) -> bool:
        """True if it replaces what lies in its place; objects below a prefix come beside other files."""
        return not self.uri.endswith("/")


def job_facts(state: JobState, connection: Site, prices: Mapping[str, float]) -> dict[str, object]:
    """What `job.json` holds. Times are seconds since 1970. `prices`: of one host for one hour, by instance type."""
    is_paid = connection.session is not None  # this machine costs nothing
    metrics = [{"Name": name, "Regex": regex} for name, regex in state.metrics]
    failure = root_cause(state.exit_message or state.failure)
    return {
        **state_json(state),
        "failure": failure,
        "metrics": metrics,
        "paid": is_paid,
        "rate": rate(state.hosts, prices) if is_paid else None,
        "links": dict(connection.links(state.kind, state.job)),
        "uris": [uri for uri in (state.left.checkpoints, state.left.tensorboard) if uri],
    }


def pieces(connection: Site, state: JobState, folder: Path, progress: Progress) -> Iterator[JobPiece]:
    """Everything that a job may have left."""
    target = connection.target
    if state.kind is Kind.TRAINING:
        model = state.left.model or _beside(state)
        if model:
            get = partial(
                fetch_archive, target.store, model, folder / "model", progress, home="/opt/ml/model", say=_warn
            )
            yield JobPiece("model", folder / "model", get, model)
    for output in state.left.outputs:
        # One output is `output`; several have a folder each.
        path = folder / "output" if len(state.left.outputs) == 1 else folder / "output" / output.name
        if output.uri.endswith("/"):
            get = partial(_fetch_folder, target, output.uri, folder, path, progress)
        else:
            get = partial(_fetch_output, target, output.uri, folder, path, progress)
        yield JobPiece("output", path, get, output.uri)
    if state.left.checkpoints:
        uri = state.left.checkpoints
        get = partial(_fetch_folder, target, uri, folder, folder / "state", progress)
        yield JobPiece("state", folder / "state", get, uri)
    if state.left.tensorboard:
        uri, path = state.left.tensorboard, folder / "tensorboard"
        yield JobPiece("tensorboard", path, partial(_fetch_folder, target, uri, folder, path, progress), uri)
    yield JobPiece("logs", folder / "logs", lambda: _fetch_logs(target, state, folder / "logs", progress))
    yield JobPiece("metrics", folder / metrics_file.FILE, lambda: _fetch_metrics(connection, state, folder))


def _fetch_folder(target: Target, uri: str, top: Path, folder: Path, progress: Progress) -> int:
    """Raises UserError for a link between `top` and the folder."""
    for each in (folder, *folder.parents[: len(folder.parts) - len(top.parts) - 1]):
        refuse_link(each)
    return fetch_folder(target.store, uri, folder, progress, _warn)


def _fetch_output(target: Target, uri: str, top: Path, folder: Path, progress: Progress) -> int:
    """As _fetch_folder, of an archive; a link in the place of the folder itself is replaced."""
    if folder.parent != top:
        refuse_link(folder.parent)
    return fetch_archive(target.store, uri, folder, progress, home="/opt/ml/output/data", say=_warn)


def counted(batches: Iterable[Sequence[LogLine]], progress: Progress) -> Iterator[Sequence[LogLine]]:
    """The same batches of lines; `progress` learns how many characters have come."""
    for batch in batches:
        progress.moved(sum(len(line.text) for line in batch))
        yield batch


def _fetch_logs(target: Target, state: JobState, folder: Path, progress: Progress) -> int:
    reader = LogReader(target.logs, state.kind, state.job)
    progress.begin(folder.name, None)
    try:
        return write_logs(counted(reader.read_all(), progress), folder)
    finally:
        progress.end()


def _fetch_metrics(connection: Site, state: JobState, folder: Path) -> int:
    """The figures of the hosts. Whoever may not read them gets the other pieces all the same."""
    is_local = connection.session is None
    finest_s = LOCAL_PERIOD_S if is_local else host_figures.PERIOD_S
    try:
        period_s, figures = host_figures.read_figures(connection.target.cloudwatch, state, datetime.now(UTC), finest_s)
    except ApiError as error:
        if refusal(error) is not Refusal.DENIED:
            raise
        _warn(f"how busy the hosts were cannot be read: {error}")
        return 0
    units = metrics_file.units(state.hosts)
    if is_local:  # whatever instance type the request names
        units = dict.fromkeys(units, HostUnits(os.cpu_count(), None))
    return write_metrics(figures, units, period_s, folder)


def _warn(text: str) -> None:
    print(f"algorun: warning: {text}", file=sys.stderr)


def _beside(state: JobState) -> str:
    """The model of a failed job: SageMaker uploads it, and does not name it."""
    return state.left.outputs[0].uri.replace("/output.tar.gz", "/model.tar.gz") if state.left.outputs else ""
