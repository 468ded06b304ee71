"""`algorun simulate`: several hosts on one machine, without Docker. Each simulated host is a supervisor with a loopback
address and an /opt/ml tree of its own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from algorun.common import own_opt_ml, own_python
from algorun.common.errors import ExitCode, UserError, exit_code
from algorun.common.event_loop import hold_signals
from algorun.common.free_ports import hold
from algorun.common.process_limit import cannot_start, is_limit
from algorun.common.systems import need_linux
from algorun.host.processes.owner import end_with_parent
from algorun.job import commit_variable, settings
from algorun.job.engine import Engine
from algorun.job.entry import BUNDLED
from algorun.job.limits import Limits
from algorun.job.request import LaunchRequest
from algorun.job.usercode import has_requirements
from algorun.machine import probe

from . import host_output, simulated_end, simulated_gpus, simulated_trees

MOST_HOSTS = 64
ENVIRONMENTS = "~/.algorun/environments"  # beside the jobs of `submit --where local`
FIRST_FOR_RAY = 2  # the last number of the first host's address: Ray replaces 127.0.0.1
INTERRUPTED = 128 + signal.SIGINT  # Ctrl-C: a script that goes on after `simulate` must not take the job for done
STOP_EXTRA_S = 30.0  # after the grace: then simulated hosts that have not ended are killed


def channels(pairs: Sequence[str]) -> dict[str, Path]:
    """The folder of each channel, from `--channel NAME=DIR`. Raises UserError."""
    found = {}
    for pair in pairs:
        name, equals, folder = pair.partition("=")
        if not equals or not name or "/" in name:
            raise UserError("--channel", f"{pair!r} is not NAME=DIR", allowed="such as train=./images")
        if not Path(folder).is_dir():
            raise UserError("--channel", f"{folder!r} in {pair!r} is not a folder", fix="name an existing folder")
        found[name] = Path(folder).resolve()
    return found


def _has_driver(request: LaunchRequest, environ: Mapping[str, str]) -> bool:
    engine = Engine.of("--engine", request.engine) if request.engine else settings.ENGINE.read(environ)
    return engine is not None and engine.has_driver


def _environments(request: LaunchRequest, environ: Mapping[str, str]) -> dict[str, str]:
    """Where the hosts make the environment for the program's requirements.txt; {} without one. Raises UserError."""
    folder = Path(request.cwd or os.getcwd())
    if (request.target in BUNDLED and not request.module) or not has_requirements(folder):
        return {}
    named = settings.ENVIRONMENTS.read(environ) or os.path.expanduser(ENVIRONMENTS)
    return {settings.ENVIRONMENTS.name: os.path.abspath(named)}


def _cpu_torch(request: LaunchRequest) -> bool:
    """True if a bundled program would compute on the CPU because torch is built without CUDA. A user's program may use
    the GPUs without torch."""
    return request.target in BUNDLED and not request.module and probe.torch_cuda(sys.path) == probe.NO_CUDA


def _command(request: LaunchRequest, python: str) -> list[str]:
    """The command line of one simulated host."""
    argv = [python, "-I", "-m", "algorun", "run", "--cwd", os.path.abspath(request.cwd or os.getcwd())]
    if request.engine:
        argv += ["--engine", request.engine]
    if request.share_nothing:
        argv += ["--share-nothing"]
    elif request.per_host:
        argv += ["--per-host"]
    elif request.per_gpu:
        argv += ["--per-gpu"]
    elif (slots := _slots(request)) is not None:
        argv += ["--slots", str(slots)]
    if request.restarts is not None:
        argv += ["--restarts", str(request.restarts)]
    if request.args_file:
        argv += ["--args-file", request.args_file]
    return [*argv, *(["-m", request.target] if request.module else [request.target]), *request.args]


def run(
    request: LaunchRequest,
    inputs: Mapping[str, Path],
    out: Path,
    environ: Mapping[str, str],
    python: str,
    *,
    resume: bool,
) -> int:
    """Runs the program on the simulated hosts; returns the job's exit code. `python`: the interpreter to use."""
    need_linux("simulate")
    count, slots = _checked(request), _slots(request)
    hosts = [f"algo-{number}" for number in range(1, count + 1)]
    patience_s = Limits.of(environ).grace_s + STOP_EXTRA_S
    out = out.absolute()
    with simulated_trees.alone(out) as lock, hold("127.0.0.1") as control:
        trees, earlier = simulated_trees.prepare(out, hosts, inputs, resume=resume)
        if earlier:
            _say(f"the run before is now in {earlier}")
        whole_hosts = request.per_host or request.share_nothing or slots is None
        gpus = simulated_gpus.give_out(
            environ, count, slots or 1, whole_hosts=whole_hosts, cpu_torch=_cpu_torch(request)
        )
        shared = own_opt_ml.why_shared(trees[hosts[0]], [str(out), *_used(request, inputs, python)])
        for line in (
            gpus.warning and f"warning: {gpus.warning}",
            gpus.why_cpu,
            shared and shared_warning(request, shared),
        ):
            if line:
                _say(line)
        first = FIRST_FOR_RAY if _has_driver(request, environ) else 1
        addresses = ",".join(f"{host}=127.0.0.{number}" for number, host in enumerate(hosts, first))
        common = {**environ, "ALGORUN_ADDRESSES": addresses, "ALGORUN_CONTROL_PORT": str(control.getsockname()[1])}
        common |= {"PATH": own_python.path(python, environ.get("PATH", os.defpath)), **_environments(request, environ)}
        common |= commit_variable.of_command_line(request, environ)
        argv = _command(request, python)
        started = time.monotonic()
        children: list[subprocess.Popen[bytes]] = []
        tie = end_with_parent(signal.SIGTERM)
        stopped_at = _pass_signals_on(children)
        # Signals are blocked until all hosts are started, so that a stop reaches each of them. A host starts with blocked
        # signals too, and handles them once its event loop runs.
        held = hold_signals()
        for host, visible in zip(hosts, gpus.visible, strict=True):
            env = {**common, "SAGEMAKER_BASE_DIR": str(trees[host]), "ALGORUN_QUIET": "1"}
            if visible is not None:
                env["CUDA_VISIBLE_DEVICES"] = visible
            begin = _begins_with(tie, None if shared else own_opt_ml.mount(trees[host]))
            try:
                children.append(_start(argv, env, begin, lock))
            except OSError as error:
                _end(children)
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
                raise (cannot_start(f"simulated host {host}") if is_limit(error) else error) from None
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        shown = host_output.display(_about(request, count), trees, environ)
        codes = _wait(children, stopped_at, patience_s, shown)
        shown.end(end := simulated_end.read_ends(hosts, trees, codes, time.monotonic() - started))
        return INTERRUPTED if end.code == ExitCode.OK and stopped_at and stopped_at[0][1] == signal.SIGINT else end.code


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends the hosts that have started. What they print is dropped: they were asked to do nothing yet."""
    for child in children:
        child.kill()
    for child in children:
        child.communicate()


def _say(text: str) -> None:
    """A line on stdout. Whoever does not take it does not end the job."""
    with contextlib.suppress(OSError):
        print(f"algorun: {text}", flush=True)


def _slots(request: LaunchRequest) -> int | None:
    """The ranks on each host. None: the launcher decides, from the program and the GPUs that a host gets."""
    return request.layout[1] if request.layout is not None else request.slots


def _about(request: LaunchRequest, hosts: int) -> str:
    slots = _slots(request)
    ranks = f" x {slots} rank{'s'[: slots != 1]}" if slots else ""
    return f"{os.path.basename(request.target)} on {hosts} host{'s'[: hosts != 1]}{ranks}"


def _checked(request: LaunchRequest) -> int:
    """The number of hosts. Raises UserError for a job that cannot be simulated."""
    hosts, slots = request.imagine_hosts, _slots(request)
    option = "--hosts" if request.layout is None else "-j"
    if request.from_job:
        raise UserError("simulate", "no program is named", allowed=f"a script, or one of {', '.join(BUNDLED)}")
    if request.code:
        raise UserError(
            "--code", "is for hosts that have no code yet", fix="name the program by its path on this machine"
        )
    if hosts is None:
        raise UserError("simulate", "the number of hosts is missing", fix="add --hosts 2 --slots 2, or -j 2x2 in short")
    if (request.per_host or request.share_nothing) and (slots or 1) != 1:
        one_each = "--per-host" if request.per_host else "--share-nothing"
        where, fix = ("-j", f"-j {hosts}x1") if request.layout is not None else ("--slots", "drop one of the two")
        raise UserError(one_each, f"contradicts {slots} slots from {where}", fix=fix)
    if hosts > MOST_HOSTS:
        raise UserError(option, f"{hosts} hosts are too many for one machine", allowed=f"up to {MOST_HOSTS}")
    return hosts


def _start(
    argv: Sequence[str], environ: Mapping[str, str], begin: Callable[[], None], lock: int
) -> subprocess.Popen[bytes]:
    """Starts one host. It holds the lock as well."""
    pipe = subprocess.PIPE
    # A session of its own: the hosts get the terminal's Ctrl-C only once, through this process.
    return subprocess.Popen(
        argv,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
        preexec_fn=begin,
        pass_fds=[lock],
    )


def _begins_with(tie: Callable[[], None], enter: Callable[[], None] | None) -> Callable[[], None]:
    def begin() -> None:
        if enter is not None:
            enter()  # first: a new user namespace clears what prctl has set
        tie()

    return begin


def _used(request: LaunchRequest, inputs: Mapping[str, Path], python: str) -> list[str]:
    """What the hosts read of this machine, whatever lies in /opt/ml."""
    folder = os.path.abspath(request.cwd or os.getcwd())
    program = [] if request.module or request.target in BUNDLED else [os.path.join(folder, request.target)]
    return [folder, *program, *map(str, inputs.values()), python, sys.prefix]


def shared_warning(request: LaunchRequest, why: str) -> str:
    """The warning that a program with /opt/ml in its text gets where hosts share this folder; "" for other programs."""
    folder = os.path.abspath(request.cwd or os.getcwd())
    named = "" if request.module or request.target in BUNDLED else own_opt_ml.named_in(request.target, folder)
    return named and (
        f"warning: {named} names /opt/ml, and all simulated hosts share this machine's ({why}): they find there what others, "
        "or earlier runs, have left; fix: use ALGORUN_CHECKPOINT_DIR, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR"
    )


def _pass_signals_on(children: Sequence[subprocess.Popen[bytes]]) -> list[tuple[float, int]]:
    """Passes every signal that asks for a stop on to the hosts. Returns a list that gets the time and number of each signal."""
    stopped_at: list[tuple[float, int]] = []

    def pass_on(number: int, _: object) -> None:
        stopped_at.append((time.monotonic(), number))
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, pass_on)
    return stopped_at


def _wait(
    children: Sequence[subprocess.Popen[bytes]],
    stopped_at: Sequence[tuple[float, int]],
    patience_s: float,
    shown: host_output.Display,
) -> list[int]:
    """Passes output on until all hosts have ended; returns their exit codes. Kills hosts that still run `patience_s`
    seconds after a stop."""
    open_outputs: dict[int, host_output.HostStream] = {}
    for child in children:
        for stream, pipe in ((1, child.stdout), (2, child.stderr)):
            assert pipe is not None
            open_outputs[pipe.fileno()] = host_output.HostStream(pipe, stream, shown)
    while open_outputs:
        ready, _, _ = select.select(list(open_outputs), [], [], shown.look_s)
        for fd in ready:
            if not open_outputs[fd].take():
                open_outputs.pop(fd).pipe.close()
        stopped_s = time.monotonic() - stopped_at[0][0] if stopped_at else None
        shown.look(stopped_s)
        if stopped_s is not None and stopped_s > patience_s:
            for child in children:
                child.kill()
    return [exit_code(child.wait()) for child in children]
