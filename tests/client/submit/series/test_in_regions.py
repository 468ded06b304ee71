"""Several regions with jobs in memory: an account and a bucket for each, and a task that lives in one of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from algorun_client.commands.main import main
from algorun_client.connection import Site
from algorun_client.submit import submit
from tests.client.submit.place.memory import Killed
from tests.client.submit.series.planned_jobs import CAPACITY, DONE, PACE, End, PlannedWorld, step
from tests.conftest import clean_environ

FIRST, SECOND = "us-east-1", "us-west-2"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/algorun:1"
LINE = ("--image", IMAGE, "--instance", "ml.g5.2xlarge,ml.g6.2xlargex2")
RUNS = End("InProgress")
LIMIT = End("Stopped", "MaxRuntimeExceeded", "", (step(1),))


class Client:
    """A folder with a program, and a world for each region. Each call is a new client."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys, self.said = folder, capsys, ""
        self.worlds = {FIRST: PlannedWorld(), SECOND: PlannedWorld()}
        (folder / "train.py").write_text("print(1)\n")
        (folder / "algorun.toml").write_text(
            'price = { "ml.g5.2xlarge" = 2, "ml.g6.2xlarge" = 3 }\n[regions.us-west-2]\nprice = { "ml.g5.2xlarge" = 5 }\n'
        )
        monkeypatch.chdir(folder)
        monkeypatch.setattr(submit, "connect", self._connect)

    def _connect(self, *_: object, region: str, **__: object) -> Site:
        target = self.worlds[region].target
        return Site(target=target, following=lambda: target, session=None, pace=PACE, options=f" --region {region}")

    def plan(self, first: tuple[End, ...] = (), second: tuple[End, ...] = (), refuses: tuple[str, ...] = ()) -> None:
        """New worlds. `refuses`: the types without quota in the first region."""
        self.worlds = {FIRST: PlannedWorld(*first), SECOND: PlannedWorld(*second)}
        self.worlds[FIRST].refuses = refuses

    def __call__(self, *words: str, regions: str = f"{FIRST},{SECOND}") -> int:
        self._capsys.readouterr()
        try:
            return main(["submit", "--region", regions, *LINE, *words, "train.py"], clean_environ())
        finally:
            out, self.said = self._capsys.readouterr()
            self.events = [json.loads(line) for line in out.splitlines()] if "--json" in words else []

    @property
    def hosts(self) -> list[list[str]]:
        """The types of the jobs in each region."""
        return [[instance for instance, _ in self.worlds[region].hosts] for region in (FIRST, SECOND)]

    @property
    def creates(self) -> list[int]:
        return [self.worlds[region].creates for region in (FIRST, SECOND)]

    def told(self) -> list[str]:
        return [line for line in self.said.splitlines() if "; next: " in line]


@pytest.fixture
def client(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "images"
    folder.mkdir()
    return Client(folder, monkeypatch, capsys)


G5, G6 = "ml.g5.2xlarge", "ml.g6.2xlarge"


def test_after_all_types_of_the_first_region_come_those_of_the_second(client):
    client.plan((CAPACITY, CAPACITY), (DONE,))
    assert client() == 0
    assert client.hosts == [[G5, G6], [G5]]
    types, region = client.told()
    assert types.endswith("; next: 2 x ml.g6.2xlarge (6 an hour)")
    assert region.startswith("algorun: no room for 2 x ml.g6.2xlarge in us-east-1 (CapacityError: ")
    assert region.endswith("; next: 1 x ml.g5.2xlarge in us-west-2 (5 an hour)")  # the price of that region
    (job,) = client.worlds[SECOND].jobs.values()
    assert job["AlgorithmSpecification"]["TrainingImage"] == IMAGE.replace(FIRST, SECOND)
    assert client() == 0
    assert "done already by" in client.said
    assert client.creates == [2, 1]


def test_a_quota_in_the_first_region_and_json(client):
    client.plan((), (DONE,), (G5, G6))
    assert client("--json") == 0
    assert client.hosts == [[], [G5]]
    told = [each for each in client.events if each["event"] == "next_hosts"]
    assert [(each["tried"], each["next"], each["rate"]) for each in told] == [
        ("1 x ml.g5.2xlarge", "2 x ml.g6.2xlarge", 6.0),
        ("2 x ml.g6.2xlarge in us-east-1", "1 x ml.g5.2xlarge in us-west-2", 5.0),
    ]
    assert [each["event"] for each in client.events].count("end") == 1


def test_one_type_in_two_regions(client):
    client.plan((CAPACITY,), (DONE,))
    assert client("--instance", G5) == 0
    assert client.hosts == [[G5], [G5]]


def test_no_room_anywhere_and_then_the_first_region_again(client):
    client.plan((CAPACITY, CAPACITY), (CAPACITY, CAPACITY))
    assert client() == 73
    assert client.hosts == [[G5, G6], [G5, G6]]
    client.worlds[FIRST].plan.append(DONE)
    assert client() == 0
    assert client.hosts == [[G5, G6, G5], [G5, G6]]


def test_a_client_comes_back_to_the_job_in_the_second_region(client):
    client.plan((CAPACITY, CAPACITY), (RUNS,), (G5, G6))
    assert client("--detach") == 0
    client.worlds[FIRST].refuses = ()
    assert client("--detach", "--json") == 0
    assert [each["joined"] for each in client.events if each["event"] == "sent"] == [True]
    assert client.creates == [0, 1]


def test_a_job_that_is_joined_in_the_first_region_may_still_be_followed_by_the_second(client, monkeypatch):
    client.plan((RUNS,), (DONE,))
    assert client("--detach", "--instance", G5) == 0
    world = client.worlds[FIRST]

    def streams(**_: object) -> dict[str, object]:  # asked for by whoever follows the job: then it fails
        world.ends = dict.fromkeys(world.ends, CAPACITY)
        return {"logStreams": []}

    monkeypatch.setattr(world, "describe_log_streams", streams)
    assert client("--instance", G5) == 0
    assert client.hosts == [[G5], [G5]]


def test_a_task_stays_where_its_checkpoints_are(client):
    client.plan((LIMIT,), (DONE,))
    assert client() == 74
    client.worlds[FIRST].refuses = (G5, G6)
    assert client() == 72
    assert "; the task stays in us-east-1, where it has images-train-0001-" in client.said
    assert client.creates == [1, 0]


def test_until_done_goes_on_in_the_region_with_the_checkpoints(client):
    client.plan((CAPACITY, CAPACITY), (LIMIT, DONE))
    assert client("--until-done") == 0
    assert client.hosts == [[G5, G6], [G5, G5]]


def test_a_task_with_jobs_in_both_regions_is_one_error(client):
    client.plan((DONE,), (DONE,))
    assert client(regions=FIRST) == 0
    assert client("--image", IMAGE.replace(FIRST, SECOND), regions=SECOND) == 0
    assert client() == 64
    assert "--region: the task has a state of its own in us-east-1 (images-train-0001-" in client.said
    assert client.creates == [1, 1]


def test_of_two_clients_in_two_regions_at_most_one_gets_a_job(client, monkeypatch):
    """The second one begins in the second region, and comes in between before the first one creates its job."""
    client.plan((RUNS,), (RUNS,))
    create, world = client.worlds[FIRST].put, client.worlds[FIRST]

    def put(uri: str, *words: object, **named: object) -> str:
        if uri.endswith("/fingerprint.json") and not client.worlds[SECOND].creates:
            assert client("--detach", regions=f"{SECOND},{FIRST}") == 0
        return create(uri, *words, **named)

    monkeypatch.setattr(world, "put", put)
    assert client("--detach") == 64
    assert "--region: another client begins the task in us-west-2 (images-train-0001-" in client.said
    assert client.creates == [0, 1]
    assert client("--detach") == 0  # joins it
    assert client.creates == [0, 1]


@pytest.mark.slow(but=["1"])
@pytest.mark.parametrize("first", range(1, 9))
def test_a_client_that_is_killed_at_any_moment_makes_no_second_job(client, first):
    def plan() -> None:
        client.plan((CAPACITY, CAPACITY, CAPACITY, CAPACITY), (DONE,))

    plan()
    assert client() == 0
    moments = [client.worlds[region]._moment for region in (FIRST, SECOND)]
    for region, count in zip((FIRST, SECOND), moments, strict=True):
        for moment in range(first, count + 1, 8):
            plan()
            client.worlds[region].kill_at = moment
            with pytest.raises(Killed):
                client()
            assert client() == 0, (region, moment)
            assert client.hosts[1] == [G5], (region, moment)
            assert len(client.hosts[0]) <= 4


@pytest.mark.parametrize(
    ("words", "toml", "error"),
    [
        (("--region", "us-east-1,us-east-1"), "", "--region: 'us-east-1' comes twice"),
        (("--region", "us-east-1,"), "", "--region: '' is empty"),
        (("--region", "a,b,c,d,e,f"), "", "--region: 6 regions; allowed: 1 to 5"),
        (("--kms-key", "k"), "", "--kms-key: k is of one region, and --region names us-west-2 too; fix: `kms_key` in [regions.us-west-2]"),
        (("--subnets", "s", "--security-groups", "g"), "", "--subnets: s is of one region, and --region names us-west-2 too"),
        (("--in", "a=efs:fs-0123456789abcdef0/x"), "", "efs:fs-0123456789abcdef0/x is of one region, and --region names us-west-2 too"),
        (("--in", "a=task:other/model"), "", "--in a: what task other left lies in one region, and --region names several"),
        (("--bucket", "b"), '[regions.us-east-1]\nbucket = "c"\n', "--bucket: is given, and algorun.toml [regions.us-east-1] bucket too"),
        (("--in", "a=s3://bucket/c"), '[regions.us-west-2]\nin.a = "s3://other/c"\n', "--in a: is given, and algorun.toml [regions.us-west-2] in.a too"),
        ((), '[regions.us-west-2]\nin.a = "."\n', "is a folder of this machine; allowed: s3://.., efs:.., fsx:.."),
        ((), "[regions.us-west-2]\nhosts = 2\n", "algorun.toml [regions.us-west-2]: unknown key 'hosts'; allowed: bucket, image, "),
        ((), "regions = 1\n", "algorun.toml: regions is not a table of regions"),
        (("--all",), '[task.train]\nrun = ["train.py"]\n', "--region: us-east-1, us-west-2: several regions are for one task"),
    ],
)  # fmt: skip
def test_bad_input_is_one_error_and_nothing_is_created(client, words, toml, error):
    (client.folder / "algorun.toml").write_text(toml)
    program = () if "--all" in words else ("train.py",)
    region = () if "--region" in words else ("--region", f"{FIRST},{SECOND}")
    client._capsys.readouterr()
    assert main(["submit", *region, *LINE, *words, *program], clean_environ()) == 64
    said = client._capsys.readouterr().err
    assert error in said
    assert len([line for line in said.splitlines() if "error" in line]) == 1
    assert [world.puts for world in client.worlds.values()] == [[], []]
