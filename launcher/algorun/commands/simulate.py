"""Several hosts on one machine, without Docker: a supervisor each, on loopback addresses, with its own /opt/ml tree."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from algorun.errors import ExitCode, UserError, exit_code
from algorun.event_loop import hold_signals
from algorun.host.logs import Lines
from algorun.host.processes import end_with_parent
from algorun.job.entry import BUNDLED
from algorun.job.paths import Paths, write_aside
from algorun.job.request import Request
from algorun.job.settings import Limits
from algorun.machine import probe
from algorun.network.addresses import free_ports
from algorun.outcome import report

from . import simulated_gpus

MOST_HOSTS = 64
STOP_EXTRA_S = 30.0  # beyond the grace, until simulated hosts that do not leave are killed


def channels(pairs: Sequence[str]) -> dict[str, Path]:
    """--channel NAME=DIR. Raises UserError on a folder that is not there."""
    found = {}
    for pair in pairs:
        name, equals, folder = pair.partition("=")
        if not equals or not name or "/" in name:
            raise UserError("--channel", f"{pair!r} is not NAME=DIR", allowed="such as train=./images")
        if not Path(folder).is_dir():
            raise UserError("--channel", f"{folder!r} is not a folder", fix="name an existing folder")
        found[name] = Path(folder).resolve()
    return found


def _prepare(out: Path, hosts: Sequence[str], inputs: Mapping[str, Path], resume: bool) -> dict[str, Path]:
    """A fresh tree per host. What an earlier simulation left goes, but for its checkpoints where `resume` is wished."""
    trees = {}
    for host in hosts:
        base = out / host
        for part in ("input", "output", "model", *(() if resume else ("checkpoints",))):
            shutil.rmtree(base / part, ignore_errors=True)
        paths = Paths(base)
        resources = {"current_host": host, "hosts": list(hosts), "network_interface_name": "lo"}
        described = {name: {"TrainingInputMode": "File"} for name in inputs}
        write_aside(paths.resourceconfig, json.dumps(resources))
        write_aside(paths.hyperparameters, "{}")
        write_aside(paths.inputdataconfig, json.dumps(described))
        for folder in (paths.model, paths.output_data, paths.checkpoints, paths.input / "data"):
            folder.mkdir(parents=True, exist_ok=True)
        for name, source in inputs.items():
            paths.channel(name).symlink_to(source, target_is_directory=True)
        trees[host] = base
    return trees


def _free_port() -> int:
    return free_ports("127.0.0.1", 1)[0]


def _cpu_torch(wish: Request) -> bool:
    """True where a bundled program would find no GPU by its torch; a user's program may use something else."""
    return wish.target in BUNDLED and not wish.module and probe.torch_cuda(sys.path) == probe.NO_CUDA


def _command(wish: Request, python: str) -> list[str]:
    """The command line of one simulated host."""
    argv = [python, "-I", "-m", "algorun", "run", "--cwd", os.path.abspath(wish.cwd or os.getcwd())]
    if wish.engine:
        argv += ["--engine", wish.engine]
    if wish.share_nothing:
        argv += ["--share-nothing"]
    elif wish.per_host:
        argv += ["--per-host"]
    elif wish.layout is not None:
        argv += ["--slots", str(wish.layout[1])]
    if wish.restarts is not None:
        argv += ["--restarts", str(wish.restarts)]
    return [*argv, *(["-m", wish.target] if wish.module else [wish.target]), *wish.args]


def run(
    wish: Request, inputs: Mapping[str, Path], out: Path, environ: Mapping[str, str], python: str, *, resume: bool
) -> int:
    """Runs the program on the simulated hosts and returns the job's exit code."""
    if wish.from_job:
        raise UserError("simulate", "no program is named", allowed=f"a script, or one of {', '.join(BUNDLED)}")
    if wish.layout is None:
        raise UserError("simulate", "-j is missing", fix="add -j HOSTSxSLOTS, such as -j 2x2")
    if (wish.per_host or wish.share_nothing) and wish.layout[1] != 1:
        option = "--per-host" if wish.per_host else "--share-nothing"
        raise UserError(option, f"contradicts {wish.layout[1]} slots from -j", fix=f"-j {wish.layout[0]}x1")
    if wish.layout[0] > MOST_HOSTS:
        raise UserError("-j", f"{wish.layout[0]} hosts on one machine", allowed=f"up to {MOST_HOSTS}")
    hosts = [f"algo-{number}" for number in range(1, wish.layout[0] + 1)]
    patience_s = Limits.of(environ).grace_s + STOP_EXTRA_S
    try:
        trees = _prepare(out.absolute(), hosts, inputs, resume)
    except OSError as error:
        raise UserError("--out", f"{out}: {error.strerror}", fix="name a folder that can be written") from None
    gpus = simulated_gpus.give_out(
        environ, *wish.layout, whole_hosts=wish.per_host or wish.share_nothing, cpu_torch=_cpu_torch(wish)
    )
    for line in (gpus.warning and f"warning: {gpus.warning}", gpus.said):
        if line:
            print(f"algorun: {line}", flush=True)
    addresses = ",".join(f"{host}=127.0.0.{number}" for number, host in enumerate(hosts, 1))
    common = {**environ, "ALGORUN_ADDRESSES": addresses, "ALGORUN_CONTROL_PORT": str(_free_port())}
    argv = _command(wish, python)
    started = time.monotonic()
    children: list[subprocess.Popen[bytes]] = []
    tie = end_with_parent(signal.SIGTERM)
    stopped_at = _pass_signals_on(children)
    # A signal to stop waits until all hosts are there, or it would miss the one being started. The hosts begin with
    # signals held too, and hear of a stop once they listen.
    held = hold_signals()
    for host, visible in zip(hosts, gpus.visible, strict=True):
        env = {**common, "SAGEMAKER_BASE_DIR": str(trees[host]), "ALGORUN_QUIET": "1"}
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        # Its own session: a Ctrl-C of the terminal reaches the hosts once, through this process.
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True, preexec_fn=tie
        )
        children.append(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    codes = _wait(children, stopped_at, patience_s)
    return _close(hosts, trees, codes, time.monotonic() - started)


class _Output:
    """One stream of one host, passed on in whole lines: hosts that wrote into one pipe would tear each other's."""

    def __init__(self, pipe: IO[bytes], target: int) -> None:
        self.pipe, self._target, self._lines = pipe, target, Lines()

    def take(self) -> bool:
        """Passes on what is there; False at the end."""
        data = os.read(self.pipe.fileno(), 256 * 1024)
        text = memoryview(self._lines.feed(data) if data else self._lines.end())
        try:
            while text:
                text = text[os.write(self._target, text) :]
        except OSError:
            pass  # nobody reads any more; the log files go on
        return bool(data)


def _pass_signals_on(children: Sequence[subprocess.Popen[bytes]]) -> list[float]:
    """Hosts hear every signal to stop that this process gets; returns the times of those, as they come."""
    stopped_at: list[float] = []

    def pass_on(number: int, _: object) -> None:
        stopped_at.append(time.monotonic())
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, pass_on)
    return stopped_at


def _wait(children: Sequence[subprocess.Popen[bytes]], stopped_at: Sequence[float], patience_s: float) -> list[int]:
    """Passes output on until all hosts have left. Hosts that outlast a stop by `patience_s` are killed."""
    open_outputs: dict[int, _Output] = {}
    for child in children:
        for pipe, target in ((child.stdout, 1), (child.stderr, 2)):
            assert pipe is not None
            open_outputs[pipe.fileno()] = _Output(pipe, target)
    while open_outputs:
        ready, _, _ = select.select(list(open_outputs), [], [], 1.0)
        for fd in ready:
            if not open_outputs[fd].take():
                open_outputs.pop(fd).pipe.close()
        if stopped_at and time.monotonic() - stopped_at[0] > patience_s:
            for child in children:
                child.kill()
    return [exit_code(child.wait()) for child in children]


def _close(hosts: Sequence[str], trees: Mapping[str, Path], codes: Sequence[int], seconds: float) -> int:
    """Says how it ended and where everything is; returns the job's code."""
    leader = Paths(trees[hosts[0]])
    results = [report.read_result(Paths(tree)) for tree in trees.values()]
    line = next((str(result["line"]) for result in results if "line" in result), "")
    # The job's own code, as surviving hosts report it, says more than the 137 of a host that was killed.
    judged = [result["code"] for result in results if isinstance(result.get("code"), int)]
    code = next((int(str(code)) for code in judged if code), next((code for code in codes if code), int(ExitCode.OK)))
    if code and line.startswith("ok"):
        line = f"failed nnodes={len(hosts)} code={code} a host failed after the job's end"
    artifacts = sorted(path.name for path in leader.model.iterdir()) if leader.model.is_dir() else []
    failures = [Paths(tree).failure for tree in trees.values() if Paths(tree).failure.is_file()]
    with contextlib.suppress(BrokenPipeError):  # nobody reads; the code still counts
        print(f"algorun: hosts left with {', '.join(map(str, codes))} after {seconds:.1f} s")
        if artifacts:
            print(f"algorun: artifacts in {leader.model}: {', '.join(artifacts)}")
        print(f"algorun: logs and metrics in {leader.output_data}", flush=True)
        if failures and code:
            text = failures[0].read_text(encoding="utf-8", errors="replace")
            print(f"algorun: {text.rstrip()}", file=sys.stderr, flush=True)
        print(line or f"failed nnodes={len(hosts)} code={code}", flush=True)
    return code
