"""Each line of the pages that submits: this machine and the test server (through boto3) give the same outputs and codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import tarfile

import boto3
import pytest

from algorun_client import connection
from algorun_client.commands.main import main
from tests.client.test_round_trip import QUICK
from tests.conftest import ROOT, clean_environ
from tests.sagemaker_server.server_process import REGION, running

PAGES = ("README.md", "docs/submit.md", "docs/local.md")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROLE = "SageMakerRole"
IMAGES = {f"cat/{n}.png": f"picture {n}".encode() for n in range(3)}
# Every program says what it reads, and leaves it in its model, its outputs and its checkpoints.
PROGRAM = """
import hashlib, os, pathlib, sys
host, data = os.environ["SM_CURRENT_HOST"], pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
read = [f"{path.relative_to(data)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sorted(data.rglob("*")) if path.is_file() and path.name[0] != "."]
print(*read, sep="\\n")
print(sys.argv[1:], os.path.basename(os.getcwd()), os.environ.get("WANDB_PROJECT"), "Loss 0.25")
pathlib.Path(os.environ["SM_MODEL_DIR"], f"{host}.txt").write_text("\\n".join([*read, *sys.argv[1:]]))
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], f"{host}.txt").write_text(str(len(read)))
pathlib.Path(os.environ["SSM_INSTANCE_STATE"]).mkdir(exist_ok=True)
pathlib.Path(os.environ["SSM_INSTANCE_STATE"], "state.txt").write_text("kept")
"""
DOWNLOAD = """
mkdir "$SSM_OUTPUT/images" && cd "$SSM_OUTPUT/images"
echo "a cat" > cat.txt && touch -d @0 cat.txt && tar -cf images.tar cat.txt && rm cat.txt && echo "downloaded to images"
"""
FAILS = 'import os, sys; print("rank", os.environ["RANK"]); sys.exit(3 * int(os.environ["RANK"]))'


# Not here: what ends in dots, containers, a VPC of one's own (submit/look_up/test_network.py, local/test_file_systems.py), and
# a bundled program, whose reports have speeds (test_job_series.py).
ELSEWHERE = {"..", "--docker", "--subnets", "ddp", "measure"}


def documented():
    """The lines of the pages that submit, each once: without the program's name, and without what only AWS needs."""
    found = {}
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        lines = [line for _, block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"`(algorun submit [^`]*)`", text) if page == "README.md" else []
        for line in lines:
            if line.startswith("algorun submit ") and not ELSEWHERE & set(line.split()):
                words = shlex.split(line, comments=True)[2:]
                if "--all" in words:  # several jobs: test_chains
                    continue
                found.setdefault(" ".join(words).replace("--where local ", ""), page)
    return found


LINES = documented()


def job_file():
    """The job file of docs/submit.md."""
    text = (ROOT / "docs" / "submit.md").read_text(encoding="utf-8")
    (found,) = [block for language, block in BLOCK.findall(text) if language == "toml" and "[task.data]" in block]
    return re.sub(r'image = ".*"', 'image = "algorun:test"', found)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server"), "--sync-s", "0.1") as process:
        clients = client_of(process)
        for bucket in ("bucket", "my-bucket", "kept"):
            clients("s3").create_bucket(Bucket=bucket)
        for name, data in IMAGES.items():
            clients("s3").put_object(Bucket="bucket", Key=f"images/{name}", Body=data)
            clients("s3").put_object(Bucket="my-bucket", Key=f"images/{name}", Body=data)
        clients("iam").create_role(RoleName=ROLE, Path="/service-role/", AssumeRolePolicyDocument="{}")
        yield process


def client_of(process):
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    return lambda name: boto3.client(name, endpoint_url=process.moto_url, region_name=REGION, **keys)


def is_measured(path):
    """Whether a file says how busy the machine was, and when: that differs from place to place."""
    return path.name.startswith(("host_figures-", "rank_times-"))


def content(path):
    """What is in a file, without times."""
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            return {each.name: archive.extractfile(each).read() for each in archive if each.isfile()}
    return "" if path.name in ("result.json", "job.json", "metrics.json") else path.read_text()


class Laptop:
    """A folder with the files that the pages talk about, and one of the two places."""

    def __init__(self, folder, place, environ, capfd):
        # Its name is the project: each test has its own.
        self.folder, self.place, self.capfd = folder / place / folder.name, place, capfd
        self.environ = {**environ, "WANDB_PROJECT": "gold", "ALGORUN_BUCKET": "kept"}
        self.folder.mkdir(parents=True)
        for name in ("train.py", "main.py"):
            (self.folder / name).write_text(PROGRAM)
        (self.folder / "fails.py").write_text(FAILS)
        (self.folder / "download.sh").write_text(DOWNLOAD)
        (self.folder / ".algorunignore").write_text("images/\n")
        for name, data in IMAGES.items():
            for top in (self.folder / "images", folder / "root" / "s3" / "bucket" / "images"):
                (top / name).parent.mkdir(parents=True, exist_ok=True)
                (top / name).write_bytes(data)
        mine = folder / "root" / "s3" / "my-bucket"
        if not mine.exists():
            mine.symlink_to("bucket")  # as docs/local.md says

    def run(self, line):
        """Submits, follows and fetches. What a user gets from it, without what tells the two places apart."""
        line = line.replace("IMAGE_URI", "algorun:test").replace("ROLE", ROLE)
        given = shlex.split(line)
        if self.place == "local":
            given = ["--where", "local", *given]
        elif "--task" not in given:
            defaults = {"--image": "algorun:test", "--role": ROLE, "--instance": "ml.m5.large"}
            given = [word for pair in defaults.items() if pair[0] not in given for word in pair] + given
        os.chdir(self.folder)
        code = main(["submit", "--json", *given], self.environ)
        said = self.capfd.readouterr()
        events = [json.loads(line) for line in said.out.splitlines()]
        assert events, said.err
        job, end = next(event["job"] for event in events if event.get("job")), events[-1]
        home = (
            self.folder / f"home-{job}"
        )  # what one job left there would stay for a second: objects have its time in seconds
        assert main(["fetch", *self.where, "--to", home.name, job], self.environ) == 0
        self.capfd.readouterr()
        return {
            "code": code,
            "end": {key: end[key] for key in ("code", "kind", "source", "code_known", "text")},
            "lines": {host: self.lines(events, host) for host in sorted({e["host"] for e in events if "host" in e})},
            "phases": [each["name"] for each in [e for e in events if e["event"] == "state"][-1]["phases"]],
            "files": {
                str(path.relative_to(home)): content(path)
                for path in sorted(home.rglob("*"))
                if path.is_file() and path.parent.name != "logs" and not is_measured(path)
            },
            "logs": sorted(re.sub(r"\d{9,}", "EPOCH", path.name) for path in (home / "logs").glob("*.log")),
        }

    @property
    def where(self):
        return ["--where", "local"] if self.place == "local" else []

    def lines(self, events, host):
        found = [each["text"] for each in events if each["event"] == "line" and each["host"] == host]
        of_ranks = sorted(line for line in found if re.match(r"\[\d", line))  # ranks print side by side
        return [*of_ranks, found[-1]]


@pytest.fixture
def here(tmp_path, monkeypatch, capfd):
    """The laptop whose jobs run on this machine."""
    monkeypatch.setattr(connection, "LOCAL", QUICK)
    monkeypatch.chdir(tmp_path)
    return Laptop(tmp_path, "local", clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root")), capfd)


@pytest.fixture
def laptops(here, tmp_path, server, monkeypatch, capfd):
    monkeypatch.setattr(connection, "PollTimes", lambda **_: QUICK)
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    return [here, Laptop(tmp_path, "server", clean_environ(**server.environ()), capfd)]


def test_the_pages_have_the_lines_that_are_tried_here():
    assert len(LINES) >= 6
    assert sum("--task" in line for line in LINES) == 2
    assert {LINES[line] for line in LINES} == set(PAGES)


# `make test` keeps one line.
# `make test` has a whole job in both places: test_round_trip.py.
@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in LINES if "--task" not in line])
def test_a_line_of_the_pages_gives_the_same_in_both_places(laptops, line):
    here, there = (each.run(line) for each in laptops)
    assert here == there
    hosts = int(re.search(r"--hosts (\d)", line)[1]) if "--hosts" in line else 1
    assert here["code"] == 0
    assert here["end"]["kind"] == "completed"
    assert [name for name in here["files"] if name.startswith("model/")] == [
        f"model/algo-{n + 1}.txt" for n in range(hosts)
    ]
    assert len(here["logs"]) == hosts


@pytest.mark.slow
def test_the_job_file_of_the_page_gives_the_same_in_both_places(laptops):
    results = []
    for laptop in laptops:
        (laptop.folder / "algorun.toml").write_text(job_file())
        results.append([laptop.run(line) for line in LINES if "--task" in line])
    here, there = results
    assert here == there
    assert [each["code"] for each in here] == [0, 0]
    assert here[0]["files"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--hosts 2 --in train=./images fails.py", 3),
        ("--hosts 2 --shell 'echo $SSM_HOST_RANK; exit $((7 * SSM_HOST_RANK))'", 7),
        (
            "--kind processing --hosts 2 --in train=./images,shard --shell 'cd $SM_CHANNEL_TRAIN && ls -R; exit $((4 * SSM_HOST_RANK))'",
            4,
        ),
        ("-j 2x2 --hyperparameter epochs=3 --in train=./images train.py", 0),
        ("--hosts 2 --restarts 1 --in train=./images fails.py", 68),
        ("--hosts 1 --in train=./images nothing-there", 127),
    ],
)
def test_ends_and_codes_are_the_same_in_both_places(laptops, line, code):
    here, there = (each.run(line) for each in laptops)
    assert here == there
    assert here["code"] == code, here
