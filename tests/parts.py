"""Runs the tests, or one part of them: `make test`, `make test-all`, `make test PART=chaos`, `make test-all PART="containers sdk"`.

`make test` leaves out what has the marker `slow`, in every part; `make test-all` runs it too. A part makes the environment
that it needs. It is a script of bash, with $BIN, $WORKERS, $CHOSEN, which is what `-m` asks for besides, $SHARE of the tests, and
$LEFT, the folders that are left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEITHER = "not docker and not root"
BESIDE = "-n $WORKERS --dist loadfile --no-loadscope-reorder"
IMAGE = "./build.sh build --variant cpu --tag algorun:cpu"
CONTAINER_FAULTS = "tests/e2e/test_container_faults.py"
# Beside others one test of thousands may miss its deadline. What failed runs once more, one at a time; the first report stands.
# pytest-rerunfailures, which would run it again at once, costs a message for each test of a worker.
ONCE = "-p no:rerunfailures"
PYTEST = f"$BIN/pytest {ONCE}"
AGAIN = """\
if [ "$status" = 1 ]; then
    printf '\\n==> what failed, once more, one test at a time\\n'
    {pytest} --maxfail 1 --last-failed --last-failed-no-failures none -m "{marks}" {rest} && status=0
fi
exit $status
"""
# Tests that bound seconds run last, one at a time.
EVERYTHING = f"""\
status=0
{PYTEST} $PROFILE -m "{NEITHER} $CHOSEN" $SHARE $LEFT {BESIDE} --durations 60 --durations-min 1 || status=$((status | $?))
alone=0
{PYTEST} --alone -m "{NEITHER} $CHOSEN" $SHARE $(grep -rl --include 'test_*.py' nothing_beside tests/launcher) || alone=$?
[ -n "$SHARE" ] && [ "$alone" = 5 ] || status=$((status | alone))  # a share may have none of them
""" + AGAIN.format(pytest=f"{PYTEST} $PROFILE", marks=f"{NEITHER} $CHOSEN", rest="$LEFT")
# What needs a compiler has parts of its own, tools and strict; `make lint` runs tests/repository.
LEFT = "--ignore tests/frameworks"
LEFT_BY_TEST = f"{LEFT} --ignore tests/repository --ignore tests/strict_cuda --ignore tests/contract"
LIGHT = f"""\
light=".venv-light/bin/python -m pytest {ONCE} -p tests.without_torch $PROFILE"
status=0
$light -m "{NEITHER} $CHOSEN" {BESIDE} --durations 30 --durations-min 2 || status=$((status | $?))
""" + AGAIN.format(pytest="$light", marks=f"{NEITHER} $CHOSEN", rest="")


@dataclass(frozen=True)
class Part:
    """`script` is what `make test` runs, `whole` what `make test-all` runs; without a script there is only the whole."""

    about: str
    needs: str
    minutes: str
    script: str = ""
    whole: str = ""
    environments: tuple[str, ...] = (".venv/ready-test",)


MAIN = "main"
PARTS = {
    MAIN: Part("all but the parts below and tests/repository; `make test-all`: also `slow`, repository, contract and strict_cuda", "-", "5, 50", EVERYTHING, EVERYTHING),
    "slow": Part(
        "what `make test` leaves to `make test-all`; every example of each property; `TEST_SHARE=1/10` runs a tenth, chosen by names",
        "-", "45", whole=EVERYTHING.replace("$CHOSEN", "and (slow or hypothesis)"),
    ),
    "light": Part(
        "what needs no torch, in an environment without it: all but the rows of tests/without_torch.py",
        "-", "4",
        LIGHT,
        environments=(".venv-light/ready",),
    ),
    "typed-lines": Part(
        "every line of the README and of two pages, typed as they stand; prints the seconds of each",
        "-", "3",
        "$BIN/python tests/typed_lines.py README.md docs/first-job.md docs/chains.md",
        environments=(".venv/ready",),
    ),
    # The environment's own Open MPI is PyPI's 5; one on top of it finds the distribution's on PATH. -k: what starts an mpirun.
    "tools": Part(
        "Open MPI of the distribution, AWS's toolkit, small disks",
        "root, Open MPI 4.1, gcc", "3",
        f"""\
$BIN/python -c 'import sagemaker_training'
mpirun --version | grep 'Open MPI) 4\\.1'
$BIN/pytest -n $WORKERS --dist loadfile tests/contract tests/launcher/machine/test_port_owner.py \\
    tests/launcher/host/test_reused_pids.py tests/launcher/host/test_run_folder.py tests/launcher/whole/test_process_limit.py \\
    tests/launcher/whole/test_clock_jumps.py tests/image/test_sdk_drivers.py tests/launcher/whole/test_failure_file.py \\
    tests/launcher/whole/test_openmpi.py
rm -rf .build/openmpi-4
$BIN/python tests/layered.py .build/openmpi-4
mpi='mpirun or mpi_ or daemon_waits'
.build/openmpi-4/bin/python -m pytest -k "$mpi" {BESIDE} tests/launcher/host tests/launcher/inside tests/launcher/whole \\
    tests/train/jobs tests/compat --ignore tests/launcher/whole/test_openmpi.py
.build/openmpi-4/bin/python -m pytest --alone -k "$mpi" tests/launcher/whole
""",
    ),
    "strict": Part(
        "whole jobs on a device named cuda that computes on the CPU and refuses what a GPU refuses",
        "g++", "1, 5",
        '$BIN/pytest -m "not docker $CHOSEN" -n $WORKERS tests/strict_cuda',
    ),
    # Ray and what it needs stay out of the environment of all other tests. One cluster at a time: each takes two cores.
    "ray": Part(
        "the engine `ray`, in an environment of its own; with Docker and the image also in containers",
        "packages from PyPI (Ray)", "3, 10",
        """\
rm -rf .build/ray
$BIN/python tests/layered.py .build/ray -r tests/launcher/whole/ray.txt
.build/ray/bin/python -m pytest -m "not docker and not root $CHOSEN" tests/launcher/whole/test_ray*.py
if docker image inspect algorun:cpu > /dev/null 2>&1; then
    .build/ray/bin/python -m pytest -m "docker $CHOSEN" tests/e2e/test_ray_containers.py
else
    echo 'no image algorun:cpu: the tests of Ray in containers are left out'
fi
""",
    ),
    "trackers": Part(
        "Weights & Biases and MLflow fed by jobs, in an environment on top of the project's",
        "100 MB of packages", "1",
        """\
rm -rf .build/trackers
$BIN/python tests/layered.py .build/trackers
$BIN/python -m pip --python .build/trackers/bin/python install --quiet -r tests/launcher/whole/trackers.txt
.build/trackers/bin/python -m pytest tests/launcher/whole/test_trackers.py
""",
    ),
    "frameworks": Part(
        "JAX, TensorFlow, Accelerate, Lightning, DeepSpeed on simulated hosts, each in an environment on top of the project's",
        "400 MB of packages, g++", "24",
        "$BIN/python -m tests.frameworks.environments\n$BIN/pytest tests/frameworks",
    ),
    "containers": Part(
        "hosts that are containers of the image",
        "Docker; docker-registry and aws on PATH", "3, 5",
        f"""\
{IMAGE}
$BIN/pytest -m "docker $CHOSEN" tests/e2e --ignore tests/e2e/test_ray_containers.py --ignore {CONTAINER_FAULTS} --durations 12
""",
    ),
    "container-faults": Part(
        "containers that fail, are killed or stopped: all hosts leave within seconds",
        "Docker, nothing beside it", "1",
        f'{IMAGE}\n$BIN/pytest -m "docker $CHOSEN" {CONTAINER_FAULTS} --durations 3',
    ),
    # The SDKs exclude each other, and neither belongs to the project's own environment.
    "sdk": Part(
        "AWS's SDKs v2 and v3 against the image; the whole writes docs/sdk-table.md",
        "Docker", "3, 25",
        f'{IMAGE}\n$BIN/pytest -m "docker $CHOSEN" tests/sdk',
        f"{IMAGE}\n$BIN/pytest -m docker --sdk-table docs/sdk-table.md tests/sdk",
        (".venv/ready-test", ".venv-sdk2/ready", ".venv-sdk3/ready"),
    ),
    "chaos": Part(
        "faults on hosts made of namespaces; the whole writes docs/chaos.md",
        "root, iproute2; the whole also Docker", "2, 40",
        '$BIN/pytest -m "root $CHOSEN" tests/chaos',
        f"{IMAGE}\n$BIN/pytest -m root --chaos-table docs/chaos.md tests/chaos",
    ),
    "fuzz": Part(
        "100,000 inputs for each reader of outside bytes; writes docs/fuzzing.md",
        "atheris", "60", whole="$BIN/python -m tests.fuzz.campaign --docs docs/fuzzing.md",
        environments=(".venv/ready-fuzz",),
    ),
    # Nothing is installed: the Python of `make demo` where it is there, else the machine's own.
    "gpu": Part(
        "checks and measures on this machine's GPUs, and writes docs/gpu.md; GPU_PYTHON and GPU_OPTIONS are read",
        "a GPU; a Python with torch for CUDA", "20",
        '"${GPU_PYTHON:-$([ -x $BIN/python ] && echo $BIN/python || echo python3)}" -m tests.gpu $GPU_OPTIONS',
        environments=(),
    ),
    # The image has the package without its tests, and no pytest.
    "image": Part(
        "the exactness of pipelines on the torch of the CUDA image",
        "Docker", "20",
        """\
./build.sh build
$BIN/pip install --quiet --upgrade --target .build/image-test pytest pytest-xdist hypothesis psutil
docker run --rm --entrypoint bash -v "$PWD":/src:ro -w /tmp -e OMP_NUM_THREADS=1 algorun:cuda -c '
    cp -r /src/tests /src/train /src/launcher /src/compat /src/pyproject.toml . &&
    PYTHONPATH=/tmp:/tmp/launcher:/tmp/train:/tmp/compat:/src/.build/image-test python -m pytest -n 2 --dist loadfile \\
        tests/train/parallel/test_exactness.py tests/train/parallel/test_schedules.py tests/compat/test_smp_steps.py \\
        tests/compat/test_smp_replicas.py tests/compat/test_smp_training.py tests/compat/test_smp_checkpoints.py \\
        tests/compat/test_smp_forms.py tests/compat/test_smp_tied.py'
""",
    ),
    # A newcomer's Debian 13 has Python 3.13, and its torch is PyPI's, with CUDA: GB that CI does not download.
    "debian13": Part(
        "`make demo` and `make test` on a bare Debian 13 (Python 3.13)",
        "Docker, mmdebstrap, 4 GB of packages", "30",
        "./build.sh base --suite trixie\nNEWCOMER_BASE=algorun-base:trixie .ci/newcomer.sh demo test",
        environments=(),
    ),
}  # fmt: skip


def script(name: str, whole: bool) -> str:
    """What runs of a part. Exits where `make test` has nothing of it."""
    part = PARTS[name]
    if not whole and not part.script:
        sys.exit(f"error: part {name}: nothing of it is in `make test`; fix: make test-all PART={name}")
    return (whole and part.whole) or part.script


def run(name: str, whole: bool) -> int:
    """Runs a part; returns its exit code."""
    text = script(name, whole)
    environ = {
        "BIN": ".venv/bin",
        # Many tests wait more than they compute. What is slow computes more, and CI runs containers beside it.
        "WORKERS": os.environ.get("TEST_WORKERS", "4" if name == MAIN else "3"),
        "OMP_NUM_THREADS": "1",
        "CHOSEN": "" if whole else "and not slow",
        "LEFT": LEFT if whole else LEFT_BY_TEST,
        "PROFILE": "" if whole else "--hypothesis-profile quick",
        "SHARE": f"--share {os.environ['TEST_SHARE']}" if os.environ.get("TEST_SHARE") else "",
        **os.environ,
    }
    if ONCE not in text:
        environ["PYTEST_ADDOPTS"] = f"{environ.get('TEST_RERUNS', '')} {environ.get('PYTEST_ADDOPTS', '')}"
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of the workers would compile every file of tests anew
    if PARTS[name].environments:
        subprocess.run([os.environ.get("MAKE", "make"), *PARTS[name].environments], cwd=ROOT, check=True)
    return subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=ROOT, env=environ, check=False).returncode


def table() -> list[str]:
    """The parts as rows of Markdown."""
    rows = ["| PART | minutes | needs | runs |", "|---|---|---|---|"]
    rows += [f"| `{name}` | {part.minutes} | {part.needs} | {part.about} |" for name, part in PARTS.items()]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog="\n".join(table())
    )
    parser.add_argument("--all", action="store_true", help="also what has the marker slow")
    parser.add_argument("--list", action="store_true", help="only print what each part runs")
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"  {name:12} {part.about}" for name, part in PARTS.items()))
        return 0
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"PART: {' '.join(unknown)}; allowed: {', '.join(PARTS)}")
    codes = [run(name, options.all) for name in options.parts or [MAIN]]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
