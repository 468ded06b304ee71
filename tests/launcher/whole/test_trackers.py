"""Jobs that feed trackers: read back by the trackers' own readers. Those that are no part of the project's environment are in
`make test PART=trackers`."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from algorun.host.measuring.tracking import setup_of
from algorun.job import config
from algorun.job.request import LaunchRequest
from tests.conftest import FAILS_ALONE, algorun

from .running import Running

PROGRAM = """\
import os, sys, time

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for number in range(1, 4):
    print(f"step {number + 10 * attempt} loss={1 / (number + 10 * attempt):.4f}", flush=True)
    time.sleep(0.05)
if sys.argv[1:] == ["fails"] and attempt == 0 and os.environ["RANK"] == "0":  # after its last line, which trackers get
    raise ValueError("planned")
if sys.argv[1:] == ["waits"]:
    time.sleep(100)
"""
METRICS = json.dumps({"loss": "step (?P<step>[0-9]+) loss=([0-9.]+)"})
LOSSES = {number: round(1 / number, 4) for number in (1, 2, 3, 11, 12, 13)}
HERE = {name: importlib.util.find_spec(name) is not None for name in ("wandb", "mlflow", "tensorboard")}


def needs(name):
    return pytest.mark.skipif(not HERE[name], reason=f"needs {name}: make test PART=trackers")


@pytest.fixture
def job(tmp_path, nothing_left):
    (tmp_path / "train.py").write_text(PROGRAM)
    if HERE["mlflow"]:  # a new database takes it seconds, and a job's end does not wait for those
        from mlflow.tracking import MlflowClient

        MlflowClient(places(tmp_path)["MLFLOW_TRACKING_URI"]).search_experiments()

    def run(trackers, *words, how="once", **environ):
        variables = {
            "ALGORUN_TRACKERS": trackers,
            "ALGORUN_METRICS": METRICS,
            **places(tmp_path),
            **FAILS_ALONE,
            **environ,
        }
        line = ("simulate", "-j", "2x1", *words, "train.py", how)
        return algorun(*line, cwd=tmp_path, ALGORUN_TEST=nothing_left, **variables)

    return run


def places(folder):
    """Where the trackers write, without a network."""
    return {
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": "tests",
        "WANDB_DIR": str(folder),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }


def run_of(done):
    return json.loads((done.folder / "algo-1" / "checkpoints" / ".algorun-run.json").read_text())


# -- the trackers' own readers ---------------------------------------------------------------------------------------


def read_tensorboard(folder, done):
    """[one dict for each run: losses by step]."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs = []
    for each in sorted((done.folder / "algo-1" / "checkpoints" / "tensorboard").iterdir()):
        events = EventAccumulator(str(each)).Reload()
        assert events.Scalars("job/attempt")
        runs.append({each.step: round(each.value, 4) for each in events.Scalars("loss")})
    return runs


def read_mlflow(folder, done):
    from mlflow.tracking import MlflowClient

    client, runs = MlflowClient(f"sqlite:///{folder}/mlflow.db"), []
    for each in client.search_runs(["0"]):
        assert each.info.status == "FINISHED"
        assert each.data.tags["algorun.end"] == done.last
        assert each.data.params["algorun.ranks"] == "2"
        assert "job/attempt" in each.data.metrics
        history = client.get_metric_history(each.info.run_id, "loss")
        runs.append({one.step: round(one.value, 4) for one in history})
    return runs


def read_wandb(folder, done):
    """What `wandb sync` makes of the files: those with one id are one run."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs = {}
    for file in sorted(folder.glob("wandb/*/run-*.wandb")):
        losses = {}
        for data in wandb_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                losses = runs.setdefault(record.run.run_id, losses)
            elif kind == "exit":
                assert record.exit.exit_code == done.code
            elif kind == "history":
                row = {each.key or ".".join(each.nested_key): each.value_json for each in record.history.item}
                if "loss" in row:
                    losses[int(row["step"])] = round(float(row["loss"]), 4)
    assert set(runs) == {run_of(done)["id"]}
    return list(runs.values())


def wandb_records(data):
    """The records of a log in the format of LevelDB, in blocks of 32 KiB, after a header of 7 bytes."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])  # kinds: whole, first, middle, last
        parts = (b"" if kind in (1, 2) else parts) + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield parts


READERS = {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in READERS])
def test_one_run_over_attempts_and_later_jobs(name, tmp_path, job):
    done = job(name, "--restarts", "1", how="fails")
    assert done.code == 0, done.text
    assert done.last == "ok nnodes=2 world_size=2 restarts=1"
    assert READERS[name](tmp_path, done) == [LOSSES]
    first = run_of(done)
    later = job(name, "--resume")  # with the checkpoints of the one before
    assert later.code == 0, later.text
    assert [run_of(later).get(each) for each in ("id", name)] == [first.get(each) for each in ("id", name)]
    assert run_of(later)["progress"] == {
        "step": 3,
        "printed": {"loss": 9},
    }  # the later job begins anew, and prints three more
    assert READERS[name](tmp_path, later) == [LOSSES]
    assert "warning" not in done.text + later.text


@needs("mlflow")
def test_a_run_that_somebody_has_deleted_is_a_new_one(tmp_path, job):
    from mlflow.tracking import MlflowClient

    first = job("mlflow")
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    before = run_of(first)
    client.delete_run(before["mlflow"])
    later = job("mlflow", "--resume")
    assert "warning" not in later.text
    assert run_of(later)["mlflow"] != before["mlflow"]
    assert run_of(later)["id"] == before["id"]


@needs("mlflow")
def test_a_name_that_mlflow_refuses_is_changed(tmp_path, job):
    from mlflow.tracking import MlflowClient

    done = job("mlflow", ALGORUN_METRICS=json.dumps({"acc (%)": "step (?P<step>[0-9]+) loss=([0-9.]+)"}))
    assert "warning" not in done.text
    found = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").get_run(run_of(done)["mlflow"]).data.metrics
    assert found["acc ___"] == pytest.approx(1 / 3, abs=1e-4)


@needs("tensorboard")
def test_without_the_checkpoints_a_new_run_begins(job):
    first = run_of(job("tensorboard"))
    assert run_of(job("tensorboard"))["id"] != first["id"]


def test_a_tracker_that_is_not_installed_is_one_warning(job):
    if HERE["wandb"]:
        pytest.skip("wandb is installed here")
    done = job("wandb")
    assert done.code == 0, done.text
    assert done.text.count("warning") == 1
    assert (
        "algorun: warning: tracker wandb gets no more of this job, which goes on: ModuleNotFoundError: No module named 'wandb'\n"
        in done.text
    )


@needs("mlflow")
def test_a_tracker_without_a_network_is_one_warning(job, tmp_path):
    done = job("mlflow,tensorboard", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert done.code == 0, done.text
    assert done.text.count("algorun: warning: tracker mlflow gets no more of this job, which goes on: ") == 1
    assert done.seconds < 40
    assert read_tensorboard(tmp_path, done) == [{step: loss for step, loss in LOSSES.items() if step < 4}]


@contextlib.contextmanager
def refusing():
    """A port of this machine at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextlib.contextmanager
def swallowing():
    """A port whose queue is full: the kernel answers no packet of a new connection."""
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@contextlib.contextmanager
def silent():
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class _Unauthorized(BaseHTTPRequestHandler):
    """Answers as W&B's server does for a key that it does not know."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"errors": [{"message": "user is not logged in"}]}'
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *words):
        pass


@contextlib.contextmanager
def unauthorized():
    """A server that takes no key."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Unauthorized) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


KEY = "5ec2e7" * 6 + "abcd"


@needs("wandb")
@pytest.mark.parametrize("server", [refusing, swallowing, silent, unauthorized])
def test_wandb_without_a_network_keeps_all_in_files(server, job, tmp_path):
    # Long enough for W&B to begin on a busy machine: a job's end waits 10 s for trackers.
    (tmp_path / "train.py").write_text(PROGRAM.replace("sleep(100)", "sleep(10)"))
    with server() as port:
        done = job(
            "wandb", how="waits", WANDB_MODE="online", WANDB_API_KEY=KEY, WANDB_BASE_URL=f"http://127.0.0.1:{port}"
        )
    assert done.code == 0, done.text
    kept = "tracker wandb keeps this job in files, as its server cannot be used: `wandb sync "
    assert done.text.count("warning") == done.text.count(f"algorun: warning: {kept}") == 1, done.text
    assert read_wandb(tmp_path, done) == [{step: loss for step, loss in LOSSES.items() if step < 4}]
    assert done.seconds < 60
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in done.text


@needs("tensorboard")
def test_a_process_of_trackers_that_is_killed_leaves_the_job_alone(tmp_path, nothing_left):
    (tmp_path / "train.py").write_text(PROGRAM.replace("sleep(100)", "sleep(4)"))
    job = Running(
        "native",
        "train.py",
        "waits",
        folder=tmp_path,
        marker=nothing_left,
        layout="2x1",
        ALGORUN_TRACKERS="tensorboard",
    )
    job.wait_for("] step 3 ", 2)
    (feeding,) = [each for each in psutil.Process(job.process.pid).children(recursive=True) if is_feeding(each)]
    feeding.kill()
    assert job.end() == 0, job.log.read_text()
    said = "algorun: warning: tensorboard: trackers get no more of this job, which goes on: their process ended with -9"
    assert job.log.read_text().count(said) == 1


def is_feeding(process: psutil.Process) -> bool:
    return "algorun.inside.trackers" in process.cmdline()


@needs("tensorboard")
def test_a_stopped_job_ends_its_run(tmp_path, nothing_left):
    (tmp_path / "train.py").write_text(PROGRAM)
    job = Running(
        "native", "train.py", "waits", folder=tmp_path, marker=nothing_left, layout="2x1",
        ALGORUN_TRACKERS="tensorboard", ALGORUN_METRICS=METRICS,
    )  # fmt: skip
    job.wait_for("] step 3 ", 2)
    began = time.monotonic()
    os.kill(job.supervisor("algo-1").pid, signal.SIGTERM)
    job.end()
    assert time.monotonic() - began < 20
    runs = list((tmp_path / "algorun-simulate" / "algo-1" / "checkpoints" / "tensorboard").iterdir())
    assert len(runs) == 1


WRONG = {
    "a name": (
        {"ALGORUN_TRACKERS": "wandb,neptune"},
        "ALGORUN_TRACKERS: 'neptune' is not allowed; allowed: wandb, mlflow",
    ),
    "no JSON": ({"ALGORUN_METRICS": "loss=([0-9]+)"}, "ALGORUN_METRICS: not JSON"),
    "no object": ({"ALGORUN_METRICS": "[]"}, "ALGORUN_METRICS: not an object of texts"),
    "no group": ({"ALGORUN_METRICS": '{"loss": "loss=[0-9]+"}'}, "ALGORUN_METRICS: loss: 'loss=[0-9]+' has 0 groups"),
    "two groups": ({"ALGORUN_METRICS": '{"loss": "(a)(b)"}'}, "ALGORUN_METRICS: loss: '(a)(b)' has 2 groups"),
    "no expression": ({"ALGORUN_METRICS": '{"loss": "("}'}, "ALGORUN_METRICS: loss: '(' is no regular expression"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_one_error_before_anything_starts(case, tmp_path):
    environ, text = WRONG[case]
    (tmp_path / "train.py").write_text(PROGRAM)
    done = algorun("simulate", "-j", "1x1", "train.py", cwd=tmp_path, **environ)
    assert done.code == 64
    assert text in done.text


def test_no_tracker_sees_a_secret_among_the_hyperparameters(tmp_path):
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]}))
    given = {"lr": "0.1", "api_key": "0123456789", "data": "https://me:pass@host/x", "sagemaker_program": "train.py"}
    (folder / "hyperparameters.json").write_text(json.dumps({name: json.dumps(value) for name, value in given.items()}))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(PROGRAM)
    environ = {"SAGEMAKER_BASE_DIR": str(tmp_path), "ALGORUN_TRACKERS": "mlflow"}
    facts = setup_of(config.read_config(LaunchRequest(from_job=True), environ), 4)["facts"]
    assert facts["lr"] == "0.1"
    assert facts["algorun.ranks"] == 4
    assert "api_key" not in facts
    assert not [name for name, value in facts.items() if "pass@" in str(value)]
