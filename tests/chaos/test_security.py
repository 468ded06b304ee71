"""Who listens, strangers, hostile input, secrets, keys."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .cases import ALL, a_rank
from .host import Setup
from .job import CONTROL_PORT, HOSTS, PROGRAMS, Job, algorun, training
from .table import recorded

pytestmark = pytest.mark.root

LIMIT_S = 60.0
HELLO_S = 5.0  # what a stranger has to prove itself
SECRET = "hunter2-9f31"
HOSTILE = {
    "lr": "0.1",
    "shell": "$(touch /tmp/owned) `touch /tmp/owned` ; touch /tmp/owned | cat && true",
    "quotes": 'it\'s "quoted" \\ twice',
    "spaces": "  two  words\tand a tab ",
    "lines": "one\ntwo",
    "glob": "* ? [a-z] ~ {1,2} $HOME %PATH% !!",
    "dash": "--engine",
    "empty": "",
    "letters": "naïve 数据 🙂",
}


@contextmanager
def job_of(folder: Path, name: str, engine: str, command: list[str], **options: Any) -> Iterator[Job]:
    job = Job(folder / name, engine, command, **options)
    try:
        yield job
    finally:
        job.close()
    shutil.rmtree(folder / name)


def stopped(job: Job) -> None:
    """The job still works, and ends well when it is asked to."""
    process = job.hosts["algo-1"].process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    job.end(time.monotonic() + LIMIT_S, HOSTS)
    assert [job.hosts[host].code for host in HOSTS] == [0, 0], job.show()
    assert [left for host in HOSTS for left in job.hosts[host].leftovers()] == []


def files(folder: Path) -> list[Path]:
    """Of a job that may still run: os.walk passes over what vanishes meanwhile."""
    found = [Path(root, name) for root, _, names in os.walk(folder) for name in names]
    return [path for path in found if path.is_file() and not path.is_symlink()]


@pytest.mark.parametrize("engine", [pytest.param(e, marks=[] if e == "native" else [pytest.mark.slow]) for e in ALL])
def test_who_listens(engine: str, folder: Path) -> None:
    with (
        recorded("S1", "who listens", engine) as record,
        job_of(folder, f"S1-{engine}", engine, training("light")) as job,
    ):
        job.start()
        job.wait_for(r"\bup \d", 4)
        seen = []
        for host in job.hosts.values():
            assert host.process is not None
            members = set(host.cgroup.pids())
            for address, port, process in host.listeners():
                pids = {int(pid) for pid in re.findall(r"pid=(\d+)", process)}
                seen.append((host.name, address, port, pids))
                assert pids, f"{address}:{port} on {host.name} belongs to nobody"
                assert pids <= members, f"{address}:{port} on {host.name} is none of the job's"
            own = [(a, p) for name, a, p, pids in seen if name == host.name and host.process.pid in pids]
            expected = [(job.network.addresses["algo-1"], CONTROL_PORT)] if host.name == "algo-1" else []
            assert own == expected, f"the launcher of {host.name} listens at {own}"
        record.verdict = (
            f"the launcher: {job.network.addresses['algo-1']}:{CONTROL_PORT} on the leader; the engine: "
            + (", ".join(f"{a}:{p}" for _, a, p, _ in seen if p != CONTROL_PORT) or "nothing")
        )
        stopped(job)


@pytest.mark.slow
def test_strangers_are_closed_and_do_not_disturb(folder: Path) -> None:
    """From an address of the job with a wrong proof, and from one that is none of the job's."""
    options: dict[str, Any] = {
        "setups": {"stranger": Setup(command=[])},
        "hosts": (*HOSTS, "stranger"),
    }
    with (
        recorded("S2", "strangers on the control port, wrong proofs", "native", HELLO_S + 2) as record,
        job_of(folder, "S2", "native", training("light"), **options) as job,
    ):
        for host in HOSTS:  # the third one is no host of the job
            path = job.hosts[host].ml / "input/config/resourceconfig.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "hosts": HOSTS}))
        job.start()
        job.wait_for(r"\bup \d", 4)
        found = []
        for host in ("algo-2", "stranger"):
            arguments = (job.network.addresses["algo-1"], str(CONTROL_PORT))
            found.append(json.loads(job.helper(host, str(PROGRAMS / "stranger.py"), *arguments)))
        record.seconds = max(each["seconds"] for each in found)
        record.verdict = (
            f"{sum(each['total'] - each['open'] for each in found)} of {sum(each['total'] for each in found)} closed"
        )
        assert not any(each["open"] for each in found), record.verdict
        assert all(host.process is None or host.process.poll() is None for host in job.hosts.values()), job.show()
        job.end_helpers()
        stopped(job)


@pytest.mark.parametrize("engine", [pytest.param(e, marks=[] if e == "native" else [pytest.mark.slow]) for e in ALL])
def test_hyperparameters_arrive_exactly(engine: str, folder: Path) -> None:
    raw = {key: json.dumps(value) for key, value in HOSTILE.items()} | {"sagemaker_program": '"echo.py"'}
    with (
        recorded("S3", "hyperparameters with $(..), quotes, spaces, newlines", engine) as record,
        job_of(folder, f"S3-{engine}", engine, algorun("train"), hyperparameters=raw) as job,
    ):
        for host in job.hosts.values():
            (host.ml / "code").mkdir()
            shutil.copy(PROGRAMS / "echo.py", host.ml / "code")
        job.end(job.start() + LIMIT_S)
        assert [host.code for host in job.hosts.values()] == [0, 0], job.show()
        for rank in range(4):
            words = json.loads((job.hosts[HOSTS[rank // 2]].ml / f"argv-{rank}.json").read_text())
            got = dict(zip(words[::2], words[1::2], strict=True))
            assert got == {f"--{key}": value for key, value in HOSTILE.items()}
        assert job.leftovers() == []  # /tmp/owned among them
        record.verdict = "argv is exact on all ranks"


REGULAR, SYMBOLIC, HARD, DEVICE = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE
MEMBERS = {
    "../": [("../escaped", REGULAR, "")],
    "an absolute path": [("/tmp/escaped", REGULAR, "")],
    "through a link": [("out", SYMBOLIC, "/mnt/ml"), ("out/escaped", REGULAR, "")],
    "through a link to ..": [("up", SYMBOLIC, ".."), ("up/escaped", REGULAR, "")],
    "a hard link": [("hard", HARD, "../input/config/hyperparameters.json")],
    "a device": [("device", DEVICE, "")],
}
"""what would leave the folder that it is unpacked into, each by another way"""


def hostile_tar(path: Path, members: list[tuple[str, bytes, str]]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, target in [("train.py", REGULAR, ""), *members]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            body = b"print('ran')\n" if kind == REGULAR else b""
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))


def unpacked(job: Job, members: list[tuple[str, bytes, str]]) -> str:
    """Runs the job; the code folder holds all that was unpacked, and all of it lies inside. Returns the outcome."""
    for host in job.hosts.values():
        hostile_tar(host.ml / "source.tar.gz", members)
    job.end(job.start() + LIMIT_S)
    for host in job.hosts.values():
        code = host.ml / "code"
        inside = list(code.rglob("*")) if code.exists() else []
        outside = [path for path in host.base.rglob("escaped*") if not path.resolve().is_relative_to(code)]
        assert not outside, outside
        assert not [path for path in inside if not path.resolve().is_relative_to(code.resolve())], inside
        assert not [path for path in inside if path.is_char_device() or (path.is_file() and path.stat().st_nlink > 1)]
    codes = {host.code for host in job.hosts.values()}
    assert len(codes) == 1, codes
    assert codes <= {0, 64}, job.show()
    assert job.leftovers() == []
    return "unpacked inside" if codes == {0} else "refused"


@pytest.mark.slow
def test_a_hostile_tar_stays_inside(folder: Path) -> None:
    raw = {"sagemaker_program": "train.py", "sagemaker_submit_directory": "/mnt/ml/source.tar.gz"}
    with recorded("S4", "a source tar with ../, links, a device", "native") as record:
        ends = []
        for number, (name, members) in enumerate(MEMBERS.items()):
            with job_of(folder, f"S4-{number}", "native", algorun("train"), hyperparameters=raw) as job:
                ends.append(f"{name}: {unpacked(job, members)}")
        record.verdict = ", ".join(ends)


@pytest.mark.parametrize("engine", [pytest.param(e, marks=[] if e == "native" else [pytest.mark.slow]) for e in ALL])
def test_secrets_are_nowhere(engine: str, folder: Path) -> None:
    """Of the environment, of hyperparameters and of the token: not in logs, not in failure, not in the process list."""
    environ = {"WANDB_API_KEY": SECRET + "-env", "ALGORUN_TOKEN": SECRET + "-token", "DB_PASSWORD": SECRET + "-pass"}
    with (
        recorded("S5", "secrets in the environment", engine) as record,
        job_of(folder, f"S5-{engine}", engine, training("light"), environ=environ) as job,
    ):
        job.start()
        job.wait_for(r"\bup \d", 4)
        shown = [command for host in job.hosts.values() for command in host.cgroup.commands()]
        assert len(shown) >= 6, shown
        assert not [command for command in shown if SECRET in command], "in the process list"
        a_rank_fails = job.inject("raise")
        job.end(a_rank_fails + LIMIT_S)
        assert [host.code for host in job.hosts.values()] == [1, 1], job.show()
        for host in job.hosts.values():
            where = [path for path in files(host.base) if SECRET.encode() in path.read_bytes()]
            assert not where, f"written to {where}"
        record.verdict = "not in logs, failure, files, process list"


@pytest.mark.slow
def test_mpirun_leaves_no_key(folder: Path) -> None:
    """No sshd, no ssh key, nothing of Open MPI's on disk, also after a fault."""
    with (
        recorded("S6", "key material under mpirun", "mpirun") as record,
        job_of(folder, "S6", "mpirun", training("light")) as job,
    ):
        at = a_rank("raise")(job)
        running = [command for host in job.hosts.values() for command in host.cgroup.commands()]
        during = [path for host in job.hosts.values() for path in files(host.base)]
        job.end(at + LIMIT_S)
        # The program itself: Open MPI 5 has a parameter by that name on its command lines.
        assert not [command for command in running if re.fullmatch(r"sshd?:?", Path(command.split()[0]).name)], running
        after = [path for host in job.hosts.values() for path in files(host.base)]
        keys = [path for path in {*during, *after} if path.exists() and b"PRIVATE KEY" in path.read_bytes()]
        named = [path for path in {*during, *after} if re.match(r"id_(rsa|ed25519|ecdsa)|authorized_keys", path.name)]
        assert not keys, keys
        assert not named, named
        assert job.leftovers() == []
        record.verdict = "no key, no sshd"
