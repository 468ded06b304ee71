"""What the image does for the drivers of the SageMaker SDK v3: the pure parts; tests/sdk runs the whole."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "sdk-v3"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"algorun_sdk_v3_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mpirun = _load("driver_mpirun")
authorized = _load("authorized_host")

# What get_mpirun_command of sagemaker-train 1.27.0 makes, shortened in the middle.
TAIL = [
    *("--allow-run-as-root", "-mca", "btl_tcp_if_include", "ethwe", "-mca", "oob_tcp_if_include", "ethwe"),
    *("-x", "NCCL_SOCKET_IFNAME=ethwe", "-x", "PATH", "python", "-m", "mpi4py", "train.py", "--interface", "ethwe"),
]


@pytest.mark.parametrize(
    ("hosts", "given", "made"),
    [
        ("algo-1", "1", "1"),
        ("algo-1:4", "4", "4"),
        ("algo-1,algo-2", "1", "2"),
        ("algo-1:2,algo-2:2", "2", "4"),
        ("algo-1:8,algo-2:8,algo-3:8", "8", "24"),
        ("algo-1:2,algo-2:2", "4", "4"),  # a later SDK that multiplies itself
        ("algo-1:2,algo-2:2", "3", "3"),
        ("algo-1:2,algo-2:4", "2", "2"),
    ],
)
def test_np_counts_every_host(hosts: str, given: str, made: str) -> None:
    argv = mpirun.with_all_hosts(["--host", hosts, "-np", given, *TAIL])
    assert argv == ["--host", hosts, "-np", made, *TAIL]


@pytest.mark.parametrize("argv", [[], ["--version"], ["-np", "2", "python", "x.py"], ["--host", "a,b", "-np"]])
def test_other_command_lines_stay(argv: list[str]) -> None:
    assert mpirun.with_all_hosts(argv) == argv


def test_a_missing_interface_becomes_the_default_one_where_it_is_meant() -> None:
    argv = mpirun.with_interface(TAIL, "ethwe", ["lo", "eth0"], "eth0")
    assert [(old, new) for old, new in zip(TAIL, argv, strict=True) if old != new] == [
        ("ethwe", "eth0"),
        ("ethwe", "eth0"),
        ("NCCL_SOCKET_IFNAME=ethwe", "NCCL_SOCKET_IFNAME=eth0"),
    ]
    assert argv[-2:] == ["--interface", "ethwe"], "the script's own argument"


@pytest.mark.parametrize(
    ("named", "interfaces", "default"),
    [("ethwe", ["ethwe", "eth0"], "eth0"), ("", ["eth0"], "eth0"), ("ethwe", ["lo"], "")],
)
def test_interfaces_that_exist_stay(named: str, interfaces: list[str], default: str) -> None:
    assert mpirun.with_interface(TAIL, named, interfaces, default) == TAIL


def test_the_jobs_variables_go_to_all_hosts_by_name_alone() -> None:
    own = [
        "PATH",
        "HOME",
        "HOSTNAME",
        "SM_CURRENT_HOST",
        "SM_NUM_GPUS",
        "SSH_CLIENT",
        "OMPI_MCA_btl",
        "BASH_FUNC_x%%",
        "_",
    ]
    job = ["GREETING", "DB_PASSWORD", "SM_HPS", "SM_HP_a-b", "TRAINING_JOB_NAME"]
    words = mpirun.forwarded(
        ["-x", "LD_LIBRARY_PATH", "-x", "AWS_REGION=a"], [*own, *job, "LD_LIBRARY_PATH", "AWS_REGION"]
    )
    assert words[::2] == ["-x"] * len(job)
    assert words[1::2] == sorted(job)


@pytest.mark.parametrize(
    ("argv", "names"), [(["-mca", "mca_base_env_list", "A"], ["B"]), ([], ["B", "OMPI_MCA_mca_base_env_list"])]
)
def test_variables_stay_where_the_user_lists_them_the_other_way(argv: list[str], names: list[str]) -> None:
    """mpirun refuses both ways at once."""
    assert mpirun.forwarded(argv, names) == []


@pytest.mark.skipif(
    not Path(mpirun.MPIRUN).exists(), reason=f"the image's Open MPI is Debian's: no {mpirun.MPIRUN} here"
)
def test_values_reach_another_host_whole_and_are_on_no_command_line(tmp_path: Path) -> None:
    """A daemon that a session with an empty environment starts stands for the other host."""
    value = "sp ace;semi\"q'uote$HOME\nsecond line hidden-7"
    agent, seen = tmp_path / "agent", tmp_path / "seen"
    agent.write_text(
        f'#!/bin/bash\nshift\necho "$*" >> {seen}\nexec env -i PATH=/usr/bin:/bin HOME=/root bash -c "$*"\n'
    )
    agent.chmod(0o755)
    show = "import os; print(repr(os.environ.get('JOB')), repr(os.environ.get('SM_CURRENT_HOST')), flush=True)"
    options = {"plm_rsh_agent": str(agent), "btl": "tcp,self", "btl_tcp_if_include": "lo", "oob_tcp_if_include": "lo"}
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "JOB": value, "SM_CURRENT_HOST": "algo-1"}
    environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    argv = ["--host", "localhost:1,another:1", "-np", "2"]
    argv += [word for name, text in options.items() for word in ("-mca", name, text)] + [sys.executable, "-c", show]
    done = subprocess.run(
        [mpirun.MPIRUN, *mpirun.forwarded(argv, environ), *argv],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted([f"{value!r} 'algo-1'", f"{value!r} None"])
    assert "orted" in seen.read_text()
    assert "hidden-7" not in seen.read_text()


def test_addresses_of_hosts_that_resolve() -> None:
    found = authorized.addresses(["localhost", "no-such-host.invalid"])
    assert found
    assert all(address == "::1" or address.startswith("127.") for address in found)


@pytest.mark.parametrize("parent", ["python", "driver"])
def test_the_wrapper_changes_calls_of_the_driver_only(tmp_path: Path, parent: str) -> None:
    """The real wrapper, its three absolute paths replaced by folders of this test."""
    argv0, recorded = tmp_path / "argv0", tmp_path / "recorded"
    for name, text in {"open-mpi": f'echo "$0" > {argv0}', "repair": f'echo "repaired $*" > {recorded}'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    text = (FOLDER / "mpirun").read_text()
    for path, own in {
        "/opt/venv/bin/python3 -I /usr/local/lib/algorun/driver_mpirun.py": str(tmp_path / "repair"),
        "/usr/bin/mpirun": str(tmp_path / "open-mpi"),
    }.items():
        assert path in text
        text = text.replace(path, own)
    wrapper = tmp_path / "mpirun"
    wrapper.write_text(text)
    wrapper.chmod(0o755)
    folder = tmp_path / ("sm_drivers/distributed_drivers" if parent == "driver" else "code")
    folder.mkdir(parents=True)
    script = folder / "mpi_driver.py"
    script.write_text(f"import subprocess\nsubprocess.run([{str(wrapper)!r}, '-np', '2', 'a b'], check=True)\n")
    subprocess.run([sys.executable, str(script)], check=True, timeout=30, env={"PATH": os.environ["PATH"]})
    assert recorded.exists() == (parent == "driver")
    assert argv0.exists() == (parent != "driver")
    if parent == "driver":
        assert recorded.read_text() == "repaired -np 2 a b\n"
