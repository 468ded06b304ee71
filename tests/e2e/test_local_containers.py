"""`algorun submit --where local --docker`: the commands as users type them, hosts as containers of the image."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from containers import IMAGE, PROGRAMS, REPOSITORY, docker

pytestmark = pytest.mark.docker

NOBODY = 65534
LABEL = "org.algorun.local-job"
LIMIT_S = 120.0


@dataclass(slots=True)
class User:
    """Somebody with a folder of programs and a local target of their own."""

    home: Path
    python: str = sys.executable
    identity: dict[str, int] = field(default_factory=dict)  # arguments of subprocess.run

    @property
    def root(self) -> Path:
        return self.home / "root"

    @property
    def work(self) -> Path:
        """The folder of the project, where the commands are typed."""
        return self.home / "digits"

    def __call__(self, *words: str, code: int = 0, stdin: str = "", **environ: str) -> str:
        """Runs `algorun WORDS`; returns stdout and stderr."""
        done = subprocess.run(
            [self.python, "-I", "-m", "algorun", *words],
            cwd=self.work,
            env={**self._environ(), **environ},
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
            **self.identity,  # type: ignore[call-overload]
        )
        assert done.returncode == code, done.stdout
        return str(done.stdout)

    def _environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "DOCKER_HOST", "DOCKER_CONTEXT") if name in os.environ}
        own = {"HOME": str(self.home), "ALGORUN_LOCAL_ROOT": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**kept, **own, "HOSTS_SECRET": "of the user's shell", "LINES": "one\ntwo"}

    def submit(self, *words: str, code: int = 0) -> str:
        """Submits a task of two hosts with one rank each."""
        options = ("--where", "local", "--docker", "--image", IMAGE, "--hosts", "2", "--env", "LINES")
        return self("submit", *options, *words, code=code)

    def containers(self) -> list[str]:
        """Names of the containers and networks of this user's jobs."""
        mine = ("--filter", f"label=org.algorun.local-root={self.root}")
        return [
            *docker("ps", "--all", *mine, "--format", "{{.Names}}").split(),
            *docker("network", "ls", *mine, "--format", "{{.Name}}").split(),
        ]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.1)

    def line_of(self, word: str, count: int = 2) -> None:
        """Until the task's hosts have printed a word so many times."""
        self.until(lambda: self("logs", "--where", "local", "local_job").count(word) >= count, word)

    def processes(self, module: str) -> list[int]:
        """The processes of this user's jobs that run a module."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except OSError:
                continue
            if module in words and any(word.startswith(f"{self.root}/") for word in words):
                found.append(int(pid))
        return found


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="algorun-test-"))
    folder.chmod(0o755)
    (folder / "digits").mkdir()
    for name in ("local_job.py", "local_count.py"):
        shutil.copy(PROGRAMS / name, folder / "digits")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def user(home: Path) -> Iterator[User]:
    made = User(home)
    yield made
    for module in ("runner", "container_guard"):  # of a test that has failed
        for pid in made.processes(f"algorun_client.local.{module}"):
            os.kill(pid, signal.SIGKILL)
    left = made.containers()
    for name in left:
        docker("network" if "-algo-" not in name else "rm", *(["rm"] if "-algo-" not in name else ["--force"]), name)
    assert left == []


def python_for_others(folder: Path) -> str:
    """An interpreter that every user may run, with the packages of this one. Skips where there is none."""
    system = "/usr/bin/python3"
    version = ("-c", "import sys; print(sys.version_info[:2])")
    try:
        found = subprocess.run([system, *version], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"{system} does not run")
    if found.strip() != str(sys.version_info[:2]):
        pytest.skip(f"{system} is another version than the one with algorun's packages")
    subprocess.run([system, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    packages = next(folder.glob("lib/python3*/site-packages"))
    paths = [path for path in sys.path if path and Path(path).is_dir() and "site-packages" in path]
    (packages / "algorun.pth").write_text(
        "\n".join([*(str(REPOSITORY / name) for name in ("client", "launcher")), *paths])
    )
    return str(folder / "bin" / "python")


def test_a_failure_of_another_user_s_job_has_its_code_and_every_file_is_theirs(home: Path) -> None:
    socket = docker("context", "inspect", "--format", "{{.Endpoints.docker.Host}}").removeprefix("unix://")
    if os.geteuid() != 0 or not stat.S_ISSOCK(os.stat(socket).st_mode):
        pytest.skip("only root can become another user")
    python = python_for_others(home / "python")
    user = User(home, python, {"user": NOBODY, "group": os.stat(socket).st_gid, "extra_groups": []})
    images = user.work / "images"
    images.mkdir()
    for number in range(3):
        (images / f"{number}.txt").write_text("x")
    for path in (home, user.work):
        os.chown(path, NOBODY, NOBODY)
    data = ("--in", "all=images", "--in", "half=images,shard", "--slots", "1")
    said = user.submit(*data, "local_job.py", "fail", code=3)
    every = "['0.txt', '1.txt', '2.txt']"
    assert f"rank 0 of 2 on algo-1: {{'all': {every}, 'half': ['0.txt', '2.txt']}}, began with nothing, uid 0" in said
    assert f"rank 1 of 2 on algo-2: {{'all': {every}, 'half': ['1.txt']}}, began with nothing, uid 0" in said
    job = Path(next(user.root.glob("jobs/training/*"))).name
    assert f"variables: 'one\\ntwo' {job} False" in said
    lines = said.splitlines()
    assert any(
        line.startswith("  exit: rank 1 on algo-2, exit 3, attempt 1: no message on stderr; last on stdout: ")
        for line in lines
    )
    assert lines[-1] == f"algorun: job {job} has failed: exit 3, kind=failed source=job"
    state = json.loads(user("status", "--where", "local", "--json", "local_job").splitlines()[0])
    assert state["failure"].endswith(", exit code: 3")
    user("fetch", "--where", "local", "--to", "home", "local_job")
    for rank, host in enumerate(("algo-1", "algo-2")):
        (log,) = (user.work / "home/logs").glob(f"{host}-*.log")
        assert f"on {host}: " in log.read_text()
        assert (user.work / "home/model" / host / "weights").read_text() == str(rank)
    assert json.loads((user.work / "home/output/result.json").read_text())["code"] == 3
    made = [path for top in (user.root, user.work / "home") for path in top.rglob("*")]
    assert {path.lstat().st_uid for path in made} == {NOBODY}
    assert not list(user.root.glob("jobs/*/*/hosts"))
    assert (user.root / "jobs/training" / job / "runner.log").read_text() == ""
    assert user.containers() == []


def test_a_stop_lets_ranks_save_and_the_next_job_goes_on(user: User) -> None:
    user.submit("--slots", "2", "--detach", "local_job.py", "wait")
    user.line_of("waiting", 4)
    names = user.containers()
    assert [name.rpartition("-algo-")[2] for name in names[:2]] == ["2", "1"]
    state = user.root / "s3/local/digits/local_job/state"
    user.until(lambda: (state / "algo-2/step-3").exists(), "the checkpoint is synced while the job runs")
    assert "is asked to stop" in user("stop", "--where", "local", "local_job")
    said = user("logs", "-f", "--where", "local", "local_job", code=74)
    assert said.splitlines()[-1].endswith("was stopped: exit 74, kind=stopped source=client")
    for rank in range(4):
        assert (state / f"algo-{rank // 2 + 1}/step-{rank}").read_text() == "saved at the stop"
    assert user.containers() == []
    said = user.submit("--slots", "2", "local_job.py", "wait")
    assert said.count("began with saved at the stop") == 4


def test_containers_end_with_their_runner_and_what_is_left_is_removed_at_the_next_use(user: User) -> None:
    user.submit("--slots", "1", "--detach", "local_job.py", "wait")
    user.line_of("waiting")
    (runner,) = user.processes("algorun_client.local.runner")
    os.kill(runner, signal.SIGKILL)
    user.until(lambda: user.containers() == [], "the guard removes the containers")
    assert "local-job-0001-" in user("status", "--where", "local", "local_job")
    user.submit("--slots", "1", "--detach", "local_job.py", "wait")
    user.line_of("waiting")
    (runner,) = user.processes("algorun_client.local.runner")
    for pid in (*user.processes("algorun_client.local.container_guard"), runner):  # the guard before may still look
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    assert len(user.containers()) == 3, "as after a fault of the machine"
    assert "Failed; nothing to stop" in user("stop", "--where", "local", "local_job")
    assert user.containers() == []
    left = user.root / "jobs/training/gone"
    own = ("--label", f"{LABEL}={left}", "--label", f"org.algorun.local-root={user.root}")
    docker("create", *own, "--name", f"{user.home.name}-left", IMAGE)  # of a job whose folder was deleted
    user.submit("--slots", "1", "local_job.py", "go")


def test_fast_files_are_read_only_isolated_hosts_meet_and_a_processing_job_leaves_its_output(user: User) -> None:
    (user.work / "fast").mkdir()
    for number in range(3):
        (user.work / "fast" / str(number)).write_text("x")
    said = user.submit(
        "--in", "fast=fast,mode=fastfile", "--slots", "1", "--network-isolation", "local_job.py", "write"
    )
    assert said.count("FastFile: Read-only file system") == 2
    user.submit("--kind", "processing", "--share-nothing", "--in", "data=fast,shard", "local_count.py")
    user("fetch", "--where", "local", "--to", "counts", "local_count")
    assert json.loads((user.work / "counts/output/algo-1.json").read_text()) == ["0", "2"]
    assert json.loads((user.work / "counts/output/algo-2.json").read_text()) == ["1"]


def test_a_shell_on_a_host_that_is_held_after_a_failure(user: User) -> None:
    user.submit("--slots", "1", "--hold-on-failure", "2m", "--detach", "local_job.py", "fail")
    user.line_of("is held for 2 min 0 s")
    (job,) = [each.name for each in (user.root / "jobs/training").iterdir()]
    typed = 'touch /opt/ml/output/data/looked; echo "rank $RANK on $(hostname)"; exit 4'
    said = user("shell", "--where", "local", job, "algo-2", code=4, stdin=typed)
    assert said.endswith("rank 1 on algo-2\n")
    assert "algorun: the environment of rank 1 on algo-2, whose command is in $ALGORUN_COMMAND" in said
    (container,) = [name for name in user.containers() if name.endswith("-algo-2")]
    # As in a session of AWS Systems Manager, which has a PATH of its own.
    typed = ("env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", "sh", "-c", "echo 'echo $RANK' | algorun shell")
    assert docker("exec", container, *typed) == "1"
    user("stop", "--where", "local", job)
    assert "was held for" in user("logs", "-f", "--where", "local", job, code=74)
    user("fetch", "--where", "local", "--to", "left", job)
    assert (user.work / "left/output/looked").is_file()
