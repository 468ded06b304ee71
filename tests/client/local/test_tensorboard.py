"""`submit --tensorboard`: the files are in S3 while the job runs, and come home. Read by TensorBoard's own reader."""

from __future__ import annotations

import time

import pytest

from algorun_client.commands.main import main
from tests.client.local.local_jobs import LIMIT_S
from tests.conftest import clean_environ

# Writes a value, waits for the test, and fails: what TensorBoard has got by then is there all the same.
PROGRAM = """
import os, pathlib, sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter  # what torch's SummaryWriter writes with
events = EventFileWriter(os.environ["ALGORUN_TENSORBOARD_DIR"])
value = Summary.Value(tag="loss", simple_value=0.5)
events.add_event(Event(step=int(os.environ["RANK"]), wall_time=time.time(), summary=Summary(value=[value])))
events.flush()
end = time.monotonic() + 60
while not pathlib.Path(sys.argv[1]).exists() and time.monotonic() < end:
    time.sleep(0.05)
sys.exit(3)
"""


@pytest.fixture
def algorun(tmp_path, monkeypatch, capfd, nothing_left):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main(list(words), clean_environ(ALGORUN_LOCAL_ROOT=str(tmp_path / "root"), ALGORUN_TEST=nothing_left))
        found = capfd.readouterr()
        return code, found.out + found.err

    return run


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for each in folder.iterdir():
        events = EventAccumulator(str(each)).Reload()
        found |= {event.step: event.value for event in events.Scalars("loss")}
    return found


def test_events_are_in_s3_while_the_job_runs_and_come_home(algorun, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    go = tmp_path / "go"
    words = ("--where", "local", "--tensorboard", "--hosts", "2", "--detach", "train.py", str(go))
    code, text = algorun("submit", *words)
    assert code == 0, text
    deadline = time.monotonic() + LIMIT_S
    while len(list((tmp_path / "root/s3").glob("local/*/train/jobs/0001/output/*/tensorboard-output/events*"))) < 2:
        assert time.monotonic() < deadline, algorun("logs", "--where", "local", "train")
        time.sleep(0.05)
    code, text = algorun("fetch", "--where", "local", "--what", "tensorboard", "--to", "live", "train")
    assert (code, "live/tensorboard: 2 files" in text) == (0, True), text
    assert scalars(tmp_path / "live" / "tensorboard") == {0: 0.5, 1: 0.5}
    go.touch()
    code, text = algorun("logs", "--where", "local", "-f", "train")
    assert code == 3, text
    code, text = algorun("fetch", "--where", "local", "--to", "home", "train")
    assert scalars(tmp_path / "home" / "tensorboard") == {0: 0.5, 1: 0.5}, text
