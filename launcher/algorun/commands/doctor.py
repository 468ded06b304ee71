"""`algorun doctor`: checks this machine, and shows what would make a job fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from algorun.common import __version__, distributions
from algorun.common.errors import ExitCode, UserError
from algorun.job import jobfiles
from algorun.job.entry import TRAINING
from algorun.job.paths import Paths
from algorun.machine import efa, openmpi, preflight, probe, program_output
from algorun.machine.finding import Finding
from algorun.machine.openmpi import OpenMpi
from algorun.plan import render

from . import doctor_gpus

HOSTS = 2  # doctor checks for a job of several hosts: it needs more than a job of one host
MEASURE_S, MEASURE_START_S = 30, 300  # seconds of `measure`, and for its start and end
MOST_OPTIONS = 4  # --device options of docker in a hint; for more devices the hint names the whole folder


def _memory(machine: probe.Machine) -> list[Finding]:
    """Memory, /dev/shm and memlock, for a job of several hosts with several ranks each."""
    total = Finding("memory", f"{machine.memory_bytes / preflight.GIB:.1f} GiB")
    return [total, preflight.memory(machine, ranks=2), *preflight.memlock(machine, hosts=HOSTS)]


def network(machine: probe.Machine) -> list[Finding]:
    """The network interfaces, and EFA."""
    return [
        Finding(
            "interfaces", f"{', '.join(machine.interfaces)} (default route: {machine.default_interface or 'none'})"
        ),
        _efa(machine),
    ]


def _efa(machine: probe.Machine) -> Finding:
    """EFA devices, and those whose nodes this container was not given: /sys shows them all the same."""
    value, over_tcp, missing = ", ".join(machine.efa_devices), "NCCL uses TCP between hosts", machine.efa_nodes_missing
    if value and machine.nccl_plugin.path:
        value += f"; NCCL uses them through {machine.nccl_plugin.path}"
    if not missing:
        return Finding("EFA devices", value or f"none: {over_tcp}")
    lacks = f"not in this container: {efa.NODES}/{', '.join(missing)}"
    options = [f"--device={efa.NODES}/{node}" for node in missing]
    fix = f"docker run {' '.join(options) if len(options) <= MOST_OPTIONS else f'--device={efa.NODES}'}"
    if not value:
        return Finding("EFA devices", f"none can be opened; {lacks}; {over_tcp}", "warn", fix)
    return Finding("EFA devices", f"{value}; {lacks}", fix=fix)


def _distributions() -> Finding:
    """Those of algorun that are installed here. They come from one clone: nothing else makes sure that they fit."""
    found = distributions.versions() or {"algorun": __version__}
    if len(set(found.values())) == 1:
        return Finding("algorun", f"{__version__}: {', '.join(found)}")
    value = ", ".join(f"{name} {version}" for name, version in found.items())
    return Finding("algorun", value, "fail", "install all of them from one clone")


def _smdistributed() -> Finding:
    """Whose package scripts for AWS's smdistributed libraries would import."""
    found = find_spec("smdistributed")
    if found is None:
        return Finding("smdistributed", "absent: only scripts that import it need it")
    places = [*(found.submodule_search_locations or ()), os.path.dirname(found.origin or "")]
    return Finding("smdistributed", next(filter(None, places), "found"))


def _software(machine: probe.Machine) -> list[Finding]:
    found = [_distributions(), _smdistributed(), Finding("python", machine.python)]
    torch = machine.packages.get("torch")
    if torch:
        found.append(Finding("torch", torch))
    else:
        found.append(Finding("torch", "absent", "fail", "pip install torch; ddp and the torchrun engine need it"))
    return found + _mpi(probe.openmpi(os.environ), machine.packages.get("mpi4py", ""))


# Prints the MPI library that mpi4py loads in a rank. Only the loaded library itself knows its version.
LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"


def _mpi(found: OpenMpi | None, mpi4py: str) -> list[Finding]:
    """mpirun, and the MPI library that ranks load. libmpi 5 under mpirun 4.1 is untested."""
    try:
        launcher = openmpi.usable(found)
    except UserError as error:
        state = Finding("mpirun", error.what, "warn", f"{openmpi.INSTALL}; only --engine mpirun needs it")
    else:
        version = program_output.first_line(launcher.mpirun, "--version")
        where = "on PATH" if launcher.on_path else "beside the interpreter"
        state = Finding(
            "mpirun", f"{version or 'does not run'}: {launcher.mpirun} ({where})", "ok" if version else "warn"
        )
    if not mpi4py:
        return [state, Finding("mpi4py", "absent", "warn", "pip install mpi4py")]
    library = program_output.first_line(sys.executable, "-I", "-c", LIBRARY).partition(",")[0]
    if not library:
        return [state, Finding("mpi4py", f"{mpi4py}, but it finds no MPI library", "warn", openmpi.INSTALL)]
    loads = Finding("mpi4py", f"{mpi4py}, which loads {library}")
    if found is not None and not library.startswith(f"Open MPI v{found.major}."):
        fix = f"put the matching mpirun first on PATH (such as the one in {os.path.dirname(sys.executable)}), or remove one of the two"
        loads = Finding("mpi4py", f"{loads.value}, but mpirun is Open MPI {found.major}'s", "warn", fix)
    return [state, loads]


def _job(paths: Paths) -> list[Finding]:
    base = paths.base
    if not base.is_dir():
        return [Finding("job folder", f"{base} does not exist: this is not a SageMaker container")]
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
        *_software(machine), cpus, *doctor_gpus.examine(machine, HOSTS), *_memory(machine), *network(machine), *_job(Paths.of(os.environ)),
    ]  # fmt: skip


def run(*, as_json: bool, measure: bool) -> int:
    """Prints the report. Returns the exit code: 69 if something would make a job fail, else 0. Raises UserError."""
    if measure and as_json:
        raise UserError(
            "--measure", "with --json", allowed="one of them", fix="algorun run measure writes measure.json"
        )
    if measure:
        distributions.need("doctor --measure", TRAINING)
    findings = examine()
    failed = any(finding.state == "fail" for finding in findings)
    if as_json:
        rows = [{"topic": f.topic, "value": f.value, "state": f.state, "fix": f.fix} for f in findings]
        print(json.dumps({"ok": not failed, "findings": rows}, indent=2))
    else:
        print(render.table([[f.state, f.topic, f.value + (f"  -> {f.fix}" if f.fix else "")] for f in findings]))
    if measure and _measure():
        failed = True
    return ExitCode.PREFLIGHT if failed else ExitCode.OK


def _measure() -> int:
    """Runs the entrypoint `measure` on this machine alone; returns its exit code."""
    sys.stdout.flush()  # its lines come after the table, in a pipe as well
    with tempfile.TemporaryDirectory(prefix="algorun-measure-") as base:
        argv = [sys.executable, "-m", "algorun", "run", "measure", "--strict", "True", "--seconds", str(MEASURE_S)]
        environ = {**os.environ, "SAGEMAKER_BASE_DIR": base}
        return subprocess.run(argv, env=environ, timeout=MEASURE_S + MEASURE_START_S, check=False).returncode
