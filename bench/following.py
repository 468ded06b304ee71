"""What following a talkative job costs: CPU seconds of `algorun logs -f` for each second of the job."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.watching import Handler, Server, cpu_s

HOSTS, RATE = 16, 1000  # lines a second of each host
JOB = "bench-lines-0001-abcdef"
START = 1_700_000_000
PAGE = 10_000  # events of an answer of GetLogEvents, at most; CloudWatch's other limit is 1 MiB
PAGE_BYTES = 1 << 20
LINE = "epoch 3 step {number:7d} train_loss: 0.69{number:05d} images_per_second: 1234.5 learning_rate: 0.001"
METRICS = ("train_loss", "images_per_second", "learning_rate", "valid_loss", "valid_accuracy", "epoch_seconds")
LIMIT_S = 300.0
BETWEEN = (0.25, 0.95)  # of the job's time: what following costs is measured between these


def serve(seconds: float) -> None:
    """Prints its address, and answers for SageMaker and CloudWatch Logs; the job begins with the first call."""
    begun: list[float] = []
    most = int(seconds * RATE)
    longest = PAGE_BYTES // (len(LINE) + 26)  # CloudWatch counts 26 bytes for each event

    def answer(target: str, asked: dict[str, Any]) -> dict[str, Any]:
        begun or begun.append(time.monotonic())  # type: ignore[func-returns-value]
        written = min(int((time.monotonic() - begun[0]) * RATE), most)
        match target.rpartition(".")[2]:
            case "DescribeTrainingJob":
                status = "Completed" if written == most else "InProgress"
                metrics = [{"Name": name, "Regex": rf"{name}: ([0-9.e+-]+)"} for name in METRICS]
                return {
                    "TrainingJobName": JOB,
                    "TrainingJobStatus": status,
                    "SecondaryStatus": status if status == "Completed" else "Training",
                    "AlgorithmSpecification": {"TrainingInputMode": "File", "MetricDefinitions": metrics},
                    "ResourceConfig": {"InstanceCount": HOSTS, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1},
                    "CreationTime": START,
                    "SecondaryStatusTransitions": [{"Status": "Training", "StartTime": START}],
                    **({"TrainingEndTime": time.time()} if status == "Completed" else {}),
                }
            case "DescribeLogStreams":
                return {"logStreams": [{"logStreamName": f"{JOB}/algo-{n + 1}-{START}"} for n in range(HOSTS)]}
            case "GetLogEvents":
                at = int(asked.get("nextToken", "f/0")[2:])
                earliest = asked.get("startTime", 0)
                if not asked.get("nextToken") and earliest:
                    at = min(max(0, earliest - START * 1000), written)  # one line a millisecond
                end = min(written, at + min(PAGE, longest))
                events = [
                    {"timestamp": START * 1000 + number, "message": LINE.format(number=number), "ingestionTime": 0}
                    for number in range(at, end)
                ]
                return {"events": events, "nextForwardToken": f"f/{end}", "nextBackwardToken": "b/0"}
        return {}

    class Service(Handler):
        def do_POST(self) -> None:
            asked = json.loads(self.body() or "{}")
            self.reply(200, json.dumps(answer(self.headers.get("X-Amz-Target", ""), asked)).encode())

    server = Server(("127.0.0.1", 0), Service)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


@contextmanager
def _serving(seconds: float) -> Iterator[str]:
    argv = [sys.executable, "-c", f"from bench.following import serve; serve({seconds})"]
    process = subprocess.Popen(argv, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def _followed(program: Path, url: str, output: Path, seconds: float, *, terminal: bool) -> tuple[float, float]:
    """CPU seconds of one `algorun logs -f`, whose output goes into a file, or through a terminal into it.

    And the cores that it took while the job ran, without its start and its end.
    """
    environ = {**os.environ, "AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "ALGORUN_FOLLOW_GRACE_S": "1"}
    environ |= {"TERM": "xterm-256color", "COLUMNS": "200", "LINES": "50", "NO_PROXY": "127.0.0.1"}
    for name in [name for name in environ if name.startswith("AWS_ENDPOINT_URL_")]:
        del environ[name]
    with open(output, "wb") as out:
        own, other = pty.openpty() if terminal else (-1, out.fileno())
        process = subprocess.Popen(
            [program, "logs", "-f", JOB], env=environ, stdin=subprocess.DEVNULL, stdout=other, stderr=subprocess.DEVNULL
        )
        late = threading.Timer(LIMIT_S, process.kill)
        late.start()
        samples: list[tuple[float, float]] = []
        watched = [
            threading.Timer(part * seconds, lambda: samples.append((time.monotonic(), cpu_s(process.pid))))
            for part in BETWEEN
        ]
        for timer in watched:
            timer.start()
        if terminal:
            os.close(other)
            with suppress(OSError):  # the terminal's other end is closed
                while content := os.read(own, 1 << 20):
                    out.write(content)
            os.close(own)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        for timer in (late, *watched):
            timer.cancel()
    if process.returncode:
        sys.exit(f"error: algorun logs -f left with {process.returncode}: {output.read_bytes()[-2000:].decode()}")
    (begun, before), (ended, after) = samples
    return used.ru_utime + used.ru_stime, (after - before) / (ended - begun)


def measure(program: Path, scratch: Path, seconds: float) -> list[dict[str, object]]:
    """Follows a job of `seconds` into a file and on a terminal, counts its lines, and prints what it costs."""
    rows: list[dict[str, object]] = []
    print(f"\nfollowing {HOSTS} hosts x {RATE} lines/s for {seconds:g} s")
    for where in ("file", "terminal"):
        output = scratch / f"followed-{where}"
        with _serving(seconds) as url:
            used_s, cores = _followed(program, url, output, seconds, terminal=where == "terminal")
        lines = output.read_bytes().count(b" train_loss: 0.69")
        if lines != int(seconds * RATE) * HOSTS:
            sys.exit(f"error: {lines} lines of {int(seconds * RATE) * HOSTS} were shown ({where})")
        rows.append({"follow": where, "lines": lines, "cpu_s": used_s, "cores": cores})
        print(
            f"  {where:9} {lines} lines: {100 * cores:.1f} % of a core while the job runs, {used_s:.2f} CPU s in all",
            flush=True,
        )
    return rows
