"""Seconds and CPU seconds from a client's start to CreateTrainingJob, for a folder of small files.

The clients send the same folder from the same machine to the same server, in turns: `algorun submit`, simple-sagemaker, and
a script of the SageMaker SDK v2. S3, STS and IAM are moto's; the server of the tests answers for SageMaker and carries out the
jobs. Each client is ended once its CreateTrainingJob has come. "first": nothing is in the bucket; "again": the same line
once more, after the job has ended; `algorun submit` gets `--force` then, because it does not repeat a job that is done.

    python bench/client.py [--rounds 7] [--files 1000] [--no-peers] [--json FILE]

simple-sagemaker and the SDK are those of .venv-sdk2 (make .venv-sdk2/ready); without it their rows are absent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import boto3

from algorun_client.aws.job_state import ENDED
from bench.processes import leave_by_signals
from bench.quiet import paired_ratio
from bench.watching import Watch, in_front
from tests.sagemaker_server.server_process import REGION, ServerProcess, running

TOP = Path(__file__).resolve().parent.parent
OURS = Path(sys.executable).parent / "algorun"
PEERS = TOP / ".venv-sdk2/bin/python"
ROLE, INSTANCE, BUCKET = "SageMakerRole", "ml.m5.large", "bench-bucket"
LIMIT_S = 300.0
FILE = 2_000  # bytes of a file
BY_SDK = """\
import sys

from sagemaker import Session
from sagemaker.pytorch import PyTorch

name, image, data, code, bucket = sys.argv[1:]
session = Session(default_bucket=bucket)  # without one it asks the real STS, whatever AWS_ENDPOINT_URL says
uploaded = session.upload_data(data, key_prefix=f"bench/{name}/input")
estimator = PyTorch(
    entry_point="train.py", source_dir=code, image_uri=image, role="SageMakerRole", instance_count=1,
    instance_type="ml.m5.large", sagemaker_session=session, base_job_name=name,
)
estimator.fit({"train": uploaded}, wait=False)
"""


@dataclass
class Client:
    """One way to send the folder. `NAME` in its words stands for a task that is new in each round.

    `again` are words that the second line of a round needs before the last one.
    """

    title: str
    words: Sequence[str]
    again: Sequence[str] = ()
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"first": [], "again": []})
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: {"first": [], "again": []})


def clients(image: str, code: Path, data: Path, script: Path, peers: bool) -> list[Client]:
    """Ours first."""
    ours = [
        str(OURS), "submit", "--detach", "--bucket", BUCKET, "--project", "bench", "--task", "NAME", "--role", ROLE, "--instance", INSTANCE,
        "--image", image, "--code", str(code), "--in", f"train={data}", "train.py",
    ]  # fmt: skip
    found = [Client("algorun submit", ours, again=["--force"])]
    if not peers:
        return found
    if not PEERS.exists():
        print(f"no {PEERS.relative_to(TOP)} (make .venv-sdk2/ready): the rows of the peers are absent")
        return found
    if subprocess.run([str(PEERS), "-c", "import simple_sagemaker"], capture_output=True, check=False).returncode == 0:
        words = [
            str(PEERS), "-m", "simple_sagemaker.cli", "run", "-p", "bench", "-t", "NAME", "-e", "train.py", "-s", str(code),
            "-b", BUCKET, "-i", str(data), "--it", INSTANCE, "--no_spot",
        ]  # fmt: skip
        found.append(Client("simple-sagemaker", words))
    else:
        print("simple-sagemaker is not in .venv-sdk2: its row is absent")
    found.append(Client("SageMaker SDK v2", [str(PEERS), str(script), "NAME", image, str(data), str(code), BUCKET]))
    return found


class Turns:
    """Lets the clients take turns at one server."""

    def __init__(self, server: ServerProcess, url: str, watch: Watch, folder: Path) -> None:
        self._watch, self._folder = watch, folder
        self._environ = {**os.environ, **server.environ(), "AWS_ENDPOINT_URL_SAGEMAKER": url, "HOME": str(folder)}
        self._sagemaker = boto3.client(
            "sagemaker", endpoint_url=server.url, region_name=REGION,
            aws_access_key_id="testing", aws_secret_access_key="testing",
        )  # fmt: skip

    def take(self, client: Client, name: str, which: str) -> None:
        """One submit, to the end of its job. Ends the benchmark if no job is created."""
        words = [*client.words[:-1], *(client.again if which == "again" else ()), client.words[-1]]
        words = [each.replace("NAME", name) for each in words]
        output = self._folder / "output"
        with open(output, "wb") as out:
            begun = time.time()
            process = subprocess.Popen(
                words, env=self._environ, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
            self._watch.begin(process.pid)
            while not self._watch.came.wait(0.2) and process.poll() is None and time.time() < begun + LIMIT_S:
                pass
            self._watch.answered.wait(LIMIT_S if self._watch.came.is_set() else 0)
            process.kill()
            process.wait()
        if not self._watch.came.is_set():
            sys.exit(f"error: {client.title} created no job:\n{output.read_text()[-3000:]}")
        client.seconds[which].append(self._watch.at - begun)
        client.cpu_s[which].append(self._watch.cpu_s)
        self._wait_for_the_jobs()

    def _wait_for_the_jobs(self) -> None:
        """Nothing else may run in the next turn; and a job that runs is joined, not sent again."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            jobs = self._sagemaker.list_training_jobs(MaxResults=5, SortBy="CreationTime", SortOrder="Descending")
            if all(each["TrainingJobStatus"] in ENDED for each in jobs["TrainingJobSummaries"]):
                return
            time.sleep(0.1)
        sys.exit("error: a job of a client does not end")


def submits(options: argparse.Namespace, scratch: Path) -> list[dict[str, object]]:
    """Measures all clients, and prints a table."""
    code, data, script, home = (scratch / name for name in ("code", "data", "by_sdk.py", "home"))
    for path in (code, data, home):
        path.mkdir()
    (code / "train.py").write_text("print('trained')\n")
    script.write_text(BY_SDK)
    source = random.Random(0)
    for number in range(options.files):
        (data / f"{number:05d}.bin").write_bytes(source.randbytes(FILE))
    os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"  # simple-sagemaker attaches one
    watch = Watch()
    with running(scratch / "server", "--sync-s", "5") as server, in_front(server, watch) as url:
        session = boto3.Session("testing", "testing", region_name=REGION)
        os.environ.update(server.environ())
        session.client("s3").create_bucket(Bucket=BUCKET)
        session.client("iam").create_role(RoleName=ROLE, AssumeRolePolicyDocument="{}")
        image = server.image(session, **{"org.algorun.request-format": "1"})
        turns, found = Turns(server, url, watch, home), clients(image, code, data, script, options.peers)
        for number in range(-1, options.rounds):  # the first round does not count: files are not yet in the cache
            for client in random.Random(number).sample(found, len(found)):
                name = f"{client.title.split()[0].lower()}{number + 1}"
                for which in ("first", "again"):
                    turns.take(client, name, which)
            print(f"round {number + 1} of {options.rounds}", flush=True)
        if options.rounds:
            for client in found:
                for which in ("first", "again"):
                    del client.seconds[which][0], client.cpu_s[which][0]
    return table(found)


def table(found: list[Client]) -> list[dict[str, object]]:
    """Prints medians, and how many times as long a peer takes as `algorun submit` in the same round."""
    rows = []
    print(
        f"\n{'to CreateTrainingJob':22} {'':6} {'s':>7} {'CPU s':>7}  {'times ours, s':>22} {'times ours, CPU s':>22}"
    )
    for client in found:
        for which in ("first", "again"):
            row: dict[str, object] = {"client": client.title, "which": which, "rounds": len(client.seconds[which])}
            row |= {"s": statistics.median(client.seconds[which]), "cpu_s": statistics.median(client.cpu_s[which])}
            over = []
            for mine, theirs in ((client.seconds, found[0].seconds), (client.cpu_s, found[0].cpu_s)):
                low, middle, high = paired_ratio(mine[which], theirs[which])
                over.append(f"{middle:.2f} ({low:.2f}-{high:.2f})" if client is not found[0] else "")
            if client is not found[0]:
                row["times_ours"] = over
            rows.append(row)
            print(f"{client.title:22} {which:6} {row['s']:7.2f} {row['cpu_s']:7.2f}  {over[0]:>22} {over[1]:>22}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="they take 20 s a turn")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    leave_by_signals()
    print(
        f"Python {platform.python_version()}, boto3 {boto3.__version__}, {os.cpu_count()} CPUs, {platform.platform()}"
    )
    with tempfile.TemporaryDirectory(prefix="algorun-bench-") as folder:
        rows = submits(options, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
