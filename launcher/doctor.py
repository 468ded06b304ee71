"""`algorun doctor`: what this machine offers, and what is wrong with it for a training job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from . import __version__, jobfiles, preflight, probe, render
from .errors import ExitCode, UserError
from .paths import Paths
from .preflight import Finding

TOOL_TIMEOUT_S = 20.0


def _first_line(*argv: str) -> str:
    """The first line that a tool prints, "" where it is absent or fails."""
    if shutil.which(argv[0]) is None:
        return ""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def _gpus(machine: probe.Machine) -> list[Finding]:
    found = [Finding("GPUs", f"{machine.gpus.value} ({machine.gpus.source})")]
    names = _first_line("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    if names:
        found.append(Finding("first GPU", names))
    elif machine.gpus.value:
        found.append(
            Finding("nvidia-smi", "does not answer", "fail", "install the NVIDIA driver or its container toolkit")
        )
    return found


def _memory(machine: probe.Machine) -> list[Finding]:
    """As for a job of several hosts with several ranks each."""
    total = Finding("memory", f"{machine.memory_bytes / preflight.GIB:.1f} GiB")
    return [total, preflight.memory(machine, ranks=2), *preflight.memlock(machine, hosts=2)]


def _network(machine: probe.Machine) -> list[Finding]:
    efa = ", ".join(machine.efa_devices) or "none: NCCL between hosts goes over TCP"
    return [
        Finding(
            "interfaces", f"{', '.join(machine.interfaces)} (default route: {machine.default_interface or 'none'})"
        ),
        Finding("EFA devices", efa),
    ]


def _software(machine: probe.Machine) -> list[Finding]:
    found = [Finding("algorun", __version__), Finding("python", machine.python)]
    torch = machine.packages.get("torch")
    if torch:
        found.append(Finding("torch", torch))
    else:
        found.append(Finding("torch", "absent", "fail", "pip install torch; ddp and the torchrun engine need it"))
    mpirun = _first_line("mpirun", "--version")
    if mpirun:
        found.append(Finding("mpirun", mpirun))
    else:
        found.append(Finding("mpirun", "absent", "warn", "apt-get install openmpi-bin; only --engine mpirun needs it"))
    mpi4py = machine.packages.get("mpi4py")
    found.append(Finding("mpi4py", mpi4py) if mpi4py else Finding("mpi4py", "absent", "warn", "pip install mpi4py"))
    return found


def _job(paths: Paths) -> list[Finding]:
    base = paths.base
    if not base.is_dir():
        return [Finding("job folder", f"{base} does not exist: not inside a SageMaker container")]
    found = [Finding("job folder", str(base))]
    found += preflight.results(probe.folder(str(path)) for path in (paths.model, paths.output))
    found += preflight.checkpoints(probe.folder(str(paths.checkpoints)))
    if paths.config.is_dir() and any(Path(paths.config).iterdir()):
        try:
            resources = jobfiles.read_resources(paths.resourceconfig)
            found.append(Finding("hosts", f"{len(resources.hosts)}, this one is {resources.current_host}"))
            jobfiles.read_hyperparameters(paths.hyperparameters)
            jobfiles.read_channels(paths.inputdataconfig)
        except UserError as error:
            found.append(Finding("job description", f"{error.where}: {error.what}", "fail", error.fix or error.allowed))
    return found


def examine() -> list[Finding]:
    """All findings about this machine."""
    machine = probe.look(os.environ)
    cpus = Finding("CPUs", f"{machine.cpus.value} ({machine.cpus.source})")
    return [
        *_software(machine), cpus, *_gpus(machine), *_memory(machine), *_network(machine), *_job(Paths.of(os.environ)),
    ]  # fmt: skip


def run(*, as_json: bool) -> int:
    """Prints the report; exit code 69 where something would make a job fail."""
    findings = examine()
    failed = any(finding.state == "fail" for finding in findings)
    if as_json:
        rows = [{"topic": f.topic, "value": f.value, "state": f.state, "fix": f.fix} for f in findings]
        print(json.dumps({"ok": not failed, "findings": rows}, indent=2))
    else:
        print(render.table([[f.state, f.topic, f.value + (f"  -> {f.fix}" if f.fix else "")] for f in findings]))
    return ExitCode.PREFLIGHT if failed else ExitCode.OK
