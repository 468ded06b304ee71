"""Carries out one local job: `python -I -m algorun_client.local.runner JOB-FOLDER KIND`.

It is a process of its own, which survives the client that started it. While it runs it owns the job's folder; if it is
killed, its hosts end too, and whoever looks next calls the job failed.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from algorun_client.common.errors import ApiError
from algorun_client.request.model import Kind

from . import artifacts, inputs, job_description
from .container_hosts import ContainerHosts
from .containers import Containers
from .host_samples import Sampling
from .host_tree import HostTrees
from .hosts import LocalHosts
from .job_folder import JobFolder, LocalSettings
from .job_record import REASON_LENGTH, LocalJobRecord, failure_reason
from .simulated_hosts import SimulatedHosts
from .stores import opened
from .synced_folder import SyncedFolder, Syncing

OWN_S = 5.0  # for whoever looks at the job at this moment and holds its lock
POLL_S = 0.1  # between two looks at markers and clocks
DIE_S = 60.0  # from SIGKILL to the end of all hosts: a disk or Docker's engine may hold one for ever


class Why(Enum):
    """Why the hosts are to end before their programs do."""

    STOP = "Stopped"
    RUNTIME = "MaxRuntimeExceeded"
    WAIT = "MaxWaitTimeExceeded"
    INTERRUPTED = "Interrupted"


class EndAsked(Exception):
    """The job is to end before its programs have started."""

    def __init__(self, why: Why) -> None:
        self.why = why


@dataclass(frozen=True, slots=True)
class Ended:
    """How the hosts ended. `why`: None if they did by themselves."""

    why: Why | None
    codes: dict[str, int]  # of each host, in the order in which they ended


class Runner:
    """One job from Starting to its end."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._request = folder.read("request.json")
        self._job = job_description.described(folder.kind, self._request)
        self._store = opened(folder.read("store.json"))
        self._settings = LocalSettings(**folder.read("settings.json"))
        self._record = folder.record()
        self._attempt_began: float | None = None  # since when the hosts are paid for

    def run(self) -> None:
        """Runs attempts until one is not interrupted. Whatever happens, the record says how the job ended."""
        try:
            while self._attempt():
                self._move("Interrupted")
                self._folder.interrupt.unlink(missing_ok=True)
                self._move("Starting")
                while self._folder.without_hosts.exists():
                    self._check()
                    time.sleep(POLL_S)
        except EndAsked as asked:
            self._finish("Stopped", secondary=asked.why.value)
        except (ApiError, ValueError, OSError) as error:
            traceback.print_exc()
            self._finish("Failed", failure=f"ClientError: {error}")
        except Exception as error:
            traceback.print_exc()
            self._finish("Failed", failure=f"InternalServerError: {type(error).__name__}: {error}")

    # -- the record --------------------------------------------------------------------------------------------------

    def _save(self, record: LocalJobRecord) -> None:
        self._record = record
        self._folder.write(record)

    def _move(self, secondary: str) -> None:
        self._save(self._record.moved(secondary, time.time()))

    def _finish(self, status: str, *, secondary: str = "", failure: str = "") -> None:
        """The job's end. Nothing of its hosts is left then."""
        shutil.rmtree(self._folder.hosts, ignore_errors=True)
        self._count_billable()
        self._save(self._record.finished(status, time.time(), secondary=secondary, failure=failure))

    def _count_billable(self) -> None:
        if self._attempt_began is not None:
            paid = time.time() - self._attempt_began
            self._record = replace(self._record, billable_s=self._record.billable_s + paid)
            self._attempt_began = None

    # -- one attempt -------------------------------------------------------------------------------------------------

    def _attempt(self) -> bool:
        """Starts the hosts and waits for them. True if they were interrupted, and another attempt is to follow."""
        shutil.rmtree(self._folder.hosts, ignore_errors=True)
        trees = {host: self._folder.hosts / host for host in self._job.cluster.hosts}
        hosts = self._hosts()
        try:
            self._check()
            self._move("Downloading")
            self._attempt_began = time.time()
            if self._record.started is None:
                self._save(replace(self._record, started=self._attempt_began))
            synced = self._prepare(trees, hosts)
        except EndAsked as asked:
            self._count_billable()
            if asked.why is Why.INTERRUPTED:
                return True
            raise
        self._move("Training")
        ended = self._run_hosts(hosts, trees, synced)
        if ended.why is Why.INTERRUPTED:
            for folder in synced:
                folder.sync()
            self._count_billable()
            return True
        self._move("Uploading")
        self._upload(trees, synced)
        self._close(trees, ended)
        return False

    def _check(self) -> None:
        why = self._why(time.time())
        if why is not None:
            raise EndAsked(why)

    def _why(self, now: float) -> Why | None:
        """Why the job is to end now, None if it is not."""
        if self._folder.stop.exists():
            return Why.STOP
        if self._job.limits.wait_s is not None and now > self._record.created + self._job.limits.wait_s:
            return Why.WAIT
        ran = self._record.billable_s + (now - self._attempt_began if self._attempt_began is not None else 0)
        if self._job.limits.run_s is not None and ran > self._job.limits.run_s:
            return Why.RUNTIME
        if self._folder.interrupt.exists():
            return Why.INTERRUPTED
        return None

    def _hosts(self) -> LocalHosts:
        containers = Containers.of(self._folder)
        if containers is None:
            return SimulatedHosts(self._job, self._folder.environments, self._folder.file_systems)
        return ContainerHosts(self._folder, self._job, containers, self._settings.stop_grace_s)

    def _prepare(self, trees: dict[str, Path], hosts: LocalHosts) -> list[SyncedFolder]:
        """Makes the hosts' folders, brings inputs and code, restores checkpoints. Raises Asked."""
        code = self._folder.hosts / inputs.SUBMITTED
        hyperparameters = inputs.local_code(self._job.program.hyperparameters, self._store, code, hosts.code(code))
        parts = HostTrees(job=self._job, request=self._request, hyperparameters=hyperparameters, hosts=hosts)
        for host, base in trees.items():
            parts.make(base, host)
        inputs.bring(self._job, self._store, trees, self._check, by_links=hosts.can_follow_links)
        synced = []
        for each in self._job.synced:
            folder = SyncedFolder(each, self._store, trees)
            if each.restore:
                folder.restore()
            synced.append(folder)
        self._check()
        return synced

    def _run_hosts(self, hosts: LocalHosts, trees: dict[str, Path], synced: list[SyncedFolder]) -> Ended:
        attempt = max(int(time.time()), self._record.attempt + 1)
        self._save(replace(self._record, attempt=attempt))
        during = [folder for folder in synced if folder.during]
        try:
            hosts.start(trees, {host: self._folder.logs / f"{host}-{attempt}" for host in trees})
            samples = Sampling(hosts.processes, trees, {host: self._folder.samples / host for host in trees})
            with Syncing(during, self._settings.sync_s, hosts.make_readable), samples:
                return Ended(self._wait(hosts), dict(hosts.codes))
        finally:
            hosts.close()

    def _wait(self, hosts: LocalHosts) -> Why | None:
        """Waits for all hosts; asks them to end where there is a reason. Returns the reason.

        A host that does not even end by SIGKILL is left behind: how the job ended is known. Only another attempt beside it is
        none: raises TimeoutError then.
        """
        why: Why | None = None
        kill_at: float | None = None
        while not hosts.have_ended:
            hosts.pump(POLL_S)
            now = time.time()
            if why is None and not any(hosts.codes.values()):
                why = self._why(now)
                if why is not None:
                    if why is not Why.INTERRUPTED:
                        self._save(replace(self._record.moved("Stopping", now), status="Stopping"))
                    hosts.signal(signal.SIGTERM)
                    kill_at = time.monotonic() + self._settings.stop_grace_s
            if kill_at is None and any(hosts.codes.values()):  # the others of a failed host leave with it, or are ended
                kill_at = time.monotonic() + self._settings.linger_s
            if kill_at is not None and time.monotonic() > kill_at:
                if time.monotonic() > kill_at + DIE_S:
                    alive = [host for host in self._job.cluster.hosts if host not in hosts.codes]
                    text = f"{', '.join(alive)}: no end {DIE_S:.0f} s after SIGKILL"
                    if why is Why.INTERRUPTED:
                        raise TimeoutError(text)
                    print(text, file=sys.stderr)
                    return why
                hosts.signal(signal.SIGKILL)
        return why

    # -- the end -----------------------------------------------------------------------------------------------------

    def _upload(self, trees: dict[str, Path], synced: list[SyncedFolder]) -> None:
        for folder in synced:
            folder.sync()
        if self._job.kind is Kind.PROCESSING:
            return
        for name, inner in (("model", "model"), ("output", "output/data")):
            folders = [tree / inner for tree in trees.values()]
            uri = artifacts.upload(folders, name, self._job.artifacts, self._store, self._folder.hosts)
            if uri and name == "model":
                self._save(replace(self._record, model=uri))

    def _close(self, trees: dict[str, Path], ended: Ended) -> None:
        message = _first_text([tree / "output" / "message" for tree in trees.values()])
        if self._job.kind is Kind.PROCESSING and message:
            self._save(replace(self._record, exit_message=message[:REASON_LENGTH]))
        failed = [host for host, code in ended.codes.items() if code]  # the first one first
        if ended.why is not None:
            self._finish("Stopped", secondary=ended.why.value)
        elif not failed:
            self._finish("Completed")
        else:
            texts = [trees[host] / "output" / "failure" for host in (self._job.cluster.hosts[0], *failed)]
            text = "" if self._job.kind is Kind.PROCESSING else _first_text(texts)
            self._finish("Failed", failure=failure_reason(text, ended.codes[failed[0]]))


def _first_text(paths: list[Path]) -> str:
    """The text of the first file that has one."""
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(4 * REASON_LENGTH).strip()
        except OSError:
            continue
        if text:
            return text
    return ""


def main(argv: list[str]) -> int:
    """Returns 0, whether this process was the one that ran the job or not."""
    folder = JobFolder(Path(argv[0]), Kind(argv[1]))
    deadline = time.monotonic() + OWN_S
    while True:
        with folder.own() as is_ours:
            if is_ours:
                if not folder.started.exists() and not folder.record().has_ended:
                    folder.started.touch()
                    Runner(folder).run()
                return 0
        if folder.started.exists() or time.monotonic() > deadline:
            return 0
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
