"""An account in memory whose jobs end as a test has planned, and a client that follows them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from algorun_client.commands.main import main
from algorun_client.common.errors import ApiError
from algorun_client.connection import PollTimes, Site
from algorun_client.submit import submit
from tests.client.submit.place.memory import World
from tests.conftest import clean_environ

STATE = "s3://local/images/train/state/"
QUOTA = (
    "The account-level service limit '{} for training job usage' is 0 Instances, with current utilization of 0 Instances "
    "and a request delta of 1 Instances. Please use AWS Service Quotas to request an increase for this quota."
)
PACE = PollTimes(poll_s=0.0, stream_s=0.0, state_s=0.0, streams_s=0.0, sweep_s=0.0, grace_s=0.0, silence_s=5.0)


@dataclasses.dataclass(frozen=True)
class End:
    """How a job ends, the files that it writes into the state, and what of it is paid for. None: SageMaker does not say it."""

    status: str
    detail: str = ""
    failure: str = ""
    writes: tuple[str, ...] = ()
    billable_s: int | None = 3600


DONE = End("Completed")
LIMIT = End("Stopped", "MaxRuntimeExceeded")
LOST = End("Failed", "Failed", "AlgorithmError: lost: algo-2, exit 66: host lost: connection closed, exit code: 66")
CAPACITY = End("Failed", "Failed", "CapacityError: Unable to provision requested ML compute capacity.")


def step(number: int) -> str:
    """A checkpoint as `ddp` names it."""
    return f"algo-1/step-{number:08d}/part-00000-of-00001.pt"


class PlannedWorld(World):
    """`plan`: the ends of the jobs in the order in which they are created. `refuses`: instance types without quota."""

    def __init__(self, *plan: End) -> None:
        super().__init__()
        self.plan, self.ends = list(plan), dict[str, End]()
        self.refuses: tuple[str, ...] = ()
        self.lost_create = False
        self.host_kind = ""  # what carries out the jobs on this machine
        self.earlier_type = ""  # of the hosts that jobs are told to have had

    def create_training_job(self, **request: Any) -> Mapping[str, Any]:
        instance = request["ResourceConfig"]["InstanceType"]
        if instance in self.refuses:
            raise ApiError("ResourceLimitExceeded", QUOTA.format(instance), "CreateTrainingJob")
        is_new = request["TrainingJobName"] not in self.jobs
        try:
            return super().create_training_job(**request)
        finally:
            if is_new and request["TrainingJobName"] in self.jobs:
                self.ends[request["TrainingJobName"]] = self.plan[len(self.ends)]

    def describe_training_job(self, *, TrainingJobName: str) -> Mapping[str, Any]:
        answer = super().describe_training_job(TrainingJobName=TrainingJobName)
        end = self.ends[TrainingJobName]
        for name in end.writes:
            self.objects.setdefault(STATE + name, (f"{TrainingJobName} {name}".encode(), ""))
        resources = {**answer["ResourceConfig"], **({"InstanceType": self.earlier_type} if self.earlier_type else {})}
        return {
            **answer,
            **({"AlgorunHosts": self.host_kind} if self.host_kind else {}),
            "ResourceConfig": resources,
            "TrainingJobStatus": end.status,
            "SecondaryStatus": end.detail,
            "FailureReason": end.failure,
            "BillableTimeInSeconds": end.billable_s,
        }

    def describe_log_streams(self, **_: Any) -> Mapping[str, Any]:
        return {"logStreams": []}

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """Type and number of the hosts of all jobs, in their order."""
        found = [each["ResourceConfig"] for each in self.jobs.values()]
        return [(each["InstanceType"], each["InstanceCount"]) for each in found]


class Client:
    """A folder with a program. Each call is a new client."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys, self.world = folder, capsys, PlannedWorld()
        (folder / "train.py").write_text("print(1)\n")
        (folder / "algorun.toml").write_text('price = { "ml.g5.2xlarge" = 2, "ml.g6.2xlarge" = 3 }\n')
        monkeypatch.chdir(folder)
        monkeypatch.setattr(submit, "connect", self._connect)

    def _connect(self, *_: object, **__: object) -> Site:
        target = self.world.target
        return Site(target=target, following=lambda: target, session=None, pace=PACE, options=" --where local")

    def __call__(self, *words: str, program: tuple[str, ...] = ("train.py",)) -> int:
        """Runs `submit`. What it said is in `said`, of JSON in `events`."""
        self._capsys.readouterr()
        line = ["submit", "--where", "local", "--instance", "ml.g5.2xlarge", *words, *program]
        try:
            return main(line, clean_environ())
        finally:
            out, self.said = self._capsys.readouterr()
            self.events = [json.loads(line) for line in out.splitlines()] if "--json" in words else []

    def events_of(self, event: str) -> list[dict[str, Any]]:
        """The JSON objects of one event."""
        return [each for each in self.events if each["event"] == event]


@pytest.fixture
def client(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "images"
    folder.mkdir()
    return Client(folder, monkeypatch, capsys)
