"""Experiment trackers: each takes rows of values in one run, which is known by a file beside the checkpoints.

So a run goes on over attempts, spot interruptions and later jobs with the same checkpoints, and a new one begins where they are gone.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import ssl
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .tracker_rows import STEP, Setup, Values

ONLINE = "online"  # a mode of W&B
REACH_S = 4.0  # for an answer of a server. With what W&B needs to begin offline it is less than a tracker has after a job's end
RUN_FILE, PROGRESS = ".algorun-run.json", "progress"
REFUSED = re.compile(r"[^\w./ -]")  # characters that MLflow takes in no name

# Its own are 7 tries of up to 120 s each, which no job's end waits for.
MLFLOW_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class Run:
    """What is known of the run: `id`, and what trackers have called it."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, RUN_FILE)
        self._lock = threading.Lock()
        self.progress: Mapping[str, object] = {}
        """how far the run is (`Feed.progress`)"""
        try:
            with open(self._path, encoding="utf-8") as file:
                self._known, self.progress = _run_of(json.load(file))
        except (OSError, ValueError):
            self._known = {"id": uuid.uuid4().hex[:16]}
            self._write()

    @property
    def id(self) -> str:
        """The same for all jobs that go on with the run."""
        return self._known["id"]

    def name_of(self, tracker: str) -> str:
        """What the tracker calls the run; "" for a new one."""
        return self._known.get(tracker, "")

    def is_called(self, tracker: str, name: str) -> None:
        """Keeps what the tracker calls the run."""
        with self._lock:
            self._known[tracker] = name
            self._write()

    def keep(self, progress: Mapping[str, object]) -> None:
        """For the next job that goes on with the run."""
        with self._lock:
            self.progress = progress
            self._write()

    def _write(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        aside = f"{self._path}.{os.getpid()}"  # not algorun.common.aside: what runs in a rank imports nothing of the launcher
        with open(aside, "w", encoding="utf-8") as file:
            json.dump({**self._known, PROGRESS: self.progress}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self._path)


def _run_of(found: object) -> tuple[dict[str, str], dict[str, object]]:
    """What the file of a run says: its names, and how far it is. Raises ValueError for one that is none."""
    if not isinstance(found, dict) or not isinstance(found.get("id"), str):
        raise ValueError("no run")
    progress = found.get(PROGRESS)
    names = {name: value for name, value in found.items() if isinstance(value, str)}
    return names, progress if isinstance(progress, dict) else {}


class Tracker(Protocol):
    """What is fed. Each method raises whatever its library does. `notice`: what the user has to know of it; "" for nothing."""

    notice: str

    def take(self, values: Values, step: int, at: float) -> None:
        """A row."""
        ...

    def end(self, code: int, line: str) -> None:
        """The job has ended with this exit code and closing line."""
        ...


class Wandb:
    """Weights & Biases. Its own steps may not go back, as those of a job do after a restart: the step is a value among others.

    Where its server cannot be used it works offline. Until `wandb.init` gives up, a job of minutes has ended, and nothing of it is
    kept: so an answer of the server is waited for before.
    """

    def __init__(self, setup: Setup, run: Run) -> None:
        import wandb

        os.environ.setdefault("WANDB_DIR", setup["data"])
        self._begin = functools.partial(
            wandb.init,
            id=run.id,
            resume="allow",
            name=setup["job"] or None,
            config=dict(setup["facts"]),
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        given, why = wandb.setup().settings, ""
        if given.mode == ONLINE:
            self._run, why = self._online(str(given.base_url))
        else:
            self._run = self._begin()
        folder = os.path.dirname(self._run.dir)
        self.notice = f"`wandb sync {folder}` sends them: {why}" if why else ""
        self._run.define_metric("*", step_metric=STEP)
        _remove_links(folder)

    # Any: a run of wandb, which need not be installed.
    def _online(self, url: str) -> tuple[Any, str]:
        """A run at the server, and ""; or one in files, and why."""
        import wandb

        why = no_answer(url)
        if not why:
            try:
                return self._begin(), ""
            except Exception as error:  # it refuses the key, for one
                why = f"{type(error).__name__}: {error}"
                wandb.teardown()  # else the id counts as in use
        return self._begin(mode="offline"), why

    def take(self, values: Values, step: int, at: float) -> None:
        self._run.log({**values, STEP: step, "time": at})

    def end(self, code: int, line: str) -> None:
        self._run.summary["end"] = line
        self._run.finish(exit_code=code)


def no_answer(url: str) -> str:
    """Why a server does not answer within REACH_S; "" where it does, whatever it says. A proxy of the environment is used."""
    found = [f"{url} has not answered within {REACH_S:g} s"]

    def ask() -> None:
        found[0] = _refusal(url)

    thread = threading.Thread(target=ask, daemon=True)  # a name may have many addresses, and each has the time-out
    thread.start()
    thread.join(REACH_S)
    return found[0]


def _refusal(url: str) -> str:
    """As `no_answer`, but it may take longer."""
    try:
        urllib.request.urlopen(url, timeout=REACH_S).close()
    except (urllib.error.HTTPError, http.client.HTTPException):
        return ""
    except urllib.error.URLError as error:
        # Whether its certificate is good is W&B's to say.
        return "" if isinstance(error.reason, ssl.SSLError) else f"{url}: {error.reason}"
    except (OSError, ValueError) as error:  # while it reads, or no address
        return f"{url}: {error}"
    return ""


def _remove_links(folder: str) -> None:
    """Those of a run to W&B's own logs, which lie elsewhere: they would not go along with the outputs, and a warning would say so."""
    for place, _, files in os.walk(folder):
        for path in (os.path.join(place, name) for name in files):
            if os.path.islink(path):
                os.unlink(path)


class Mlflow:
    """MLflow. Server and experiment are those of its own variables."""

    notice = ""

    def __init__(self, setup: Setup, run: Run) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient()
        for name, value in MLFLOW_PATIENCE.items():
            os.environ.setdefault(name, value)
        self._id = run.name_of("mlflow")
        try:
            if self._id and self._client.get_run(self._id).info.lifecycle_stage != ACTIVE:
                self._id = ""  # somebody has deleted it
        except MlflowException as error:
            if error.error_code != GONE:  # another server, or one that forgets
                raise
            self._id = ""
        if self._id:
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"mlflow.runName": setup["job"] or run.id, "algorun.run": run.id}
        self._id = str(self._client.create_run(self._experiment(), tags=tags).info.run_id)
        run.is_called("mlflow", self._id)
        facts = list(setup["facts"].items())[:100]  # of one request
        self._client.log_batch(self._id, params=[Param(REFUSED.sub("_", name), str(value)) for name, value in facts])

    def _experiment(self) -> str:
        given, name = os.environ.get("MLFLOW_EXPERIMENT_ID"), os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        if given:
            return given
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def take(self, values: Values, step: int, at: float) -> None:
        found = [
            self._metric(REFUSED.sub("_", name), float(value), int(at * 1000), step) for name, value in values.items()
        ]
        self._client.log_batch(self._id, metrics=found)

    def end(self, code: int, line: str) -> None:
        self._client.set_tag(self._id, "algorun.end", line[:500])
        self._client.set_terminated(self._id, status="FAILED" if code else "FINISHED")


class TensorBoard:
    """Event files: in ALGORUN_TENSORBOARD_DIR, else in a folder beside the checkpoints, where the next job goes on."""

    notice = ""

    def __init__(self, setup: Setup, run: Run) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = os.environ.get("ALGORUN_TENSORBOARD_DIR") or os.path.join(setup["state"], "tensorboard")
        self._event, self._summary, self._writer = Event, Summary, EventFileWriter(os.path.join(folder, run.id))

    def take(self, values: Values, step: int, at: float) -> None:
        found = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event(wall_time=at, step=step, summary=self._summary(value=found)))

    def end(self, code: int, line: str) -> None:
        self._writer.close()


ACTIVE, GONE = "active", "RESOURCE_DOES_NOT_EXIST"  # MLflow's words
KINDS: Mapping[str, Callable[[Setup, Run], Tracker]] = {"wandb": Wandb, "mlflow": Mlflow, "tensorboard": TensorBoard}
