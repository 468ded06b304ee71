"""Several hosts on this machine, real processes and sockets, under every engine."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys

import pytest

from algorun.common.free_ports import free_ports
from tests.conftest import CONTRACT, ENGINES, clean_environ, needs_mpi, ours

from .running import PROGRAMS, Running, simulate

UNENCODABLE = b'{"type":"hello","host":"algo-2","slots":1,"digest":{},"master_addr":"","master_port":0,"error":"","mac":"\\ud800"}\n'


# What the supervisor does is the same under all engines.
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_collective_over_two_hosts(engine, tmp_path, nothing_left):
    done = simulate(engine, PROGRAMS / "collective.py", folder=tmp_path, marker=nothing_left, layout="2x1")
    assert done.code == 0, done.text
    assert done.last == "ok nnodes=2 world_size=2"
    for rank, host in enumerate(["algo-1", "algo-2"]):
        assert f"[{rank} {host}] sum 3.0" in done.out
        output = done.folder / host / "output"
        assert (output / "success").read_text() == ""
        assert not (output / "failure").exists()
        assert len(list((output / "data" / "logs").glob("rank-*.log"))) == 1


@pytest.mark.slow(but=["mpirun"])
@pytest.mark.parametrize("engine", ENGINES)
def test_arguments_that_look_like_an_engine_s_own_reach_the_script(engine, tmp_path, nothing_left):
    """torchrun's parser takes `--d` for the begin of an option of its own, mpirun's `-np` for one."""
    words = ["--d", "48", "-np", "3", "--nnodes", "7", "--", "-x", "", "a b"]
    program = tmp_path / "shows.py"
    program.write_text("import json, sys\nprint('argv', json.dumps(sys.argv[1:]), flush=True)\n")
    done = simulate(engine, program, *words, folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert done.out.count("argv " + json.dumps(words)) == 4


def contract(environ):
    return {k: v for k, v in environ.items() if k in CONTRACT or k.startswith(("ROLE_", "GROUP_"))}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """What bare torchrun gives to four ranks on two nodes."""
    bare = tmp_path_factory.mktemp("bare")
    nodes, port = [], free_ports("127.0.0.1", 1)[0]
    for node in (0, 1):
        argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2",
                "--rdzv-backend=static", "--master-addr=127.0.0.1", f"--master-port={port}",
                str(PROGRAMS / "environment.py"), "a b", str(bare)]  # fmt: skip
        nodes.append(subprocess.Popen(argv, env=clean_environ(), stdin=subprocess.DEVNULL))
    assert [node.wait(60) for node in nodes] == [0, 0]
    return [json.loads((bare / f"rank-{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.slow(but=["native"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gives_the_environment_that_torchrun_gives(engine, oracle, tmp_path, nothing_left):
    program = PROGRAMS / "environment.py"
    done = simulate(engine, program, "a b", tmp_path, folder=tmp_path, marker=nothing_left, ALGORUN_TF_CONFIG="1")
    assert done.code == 0, done.text
    ports = set()
    for rank, expected in enumerate(oracle):
        seen = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        want, have = contract(expected["env"]), contract(seen["env"])
        want["MASTER_PORT"] = have["MASTER_PORT"]  # a free one each time
        assert have == want
        assert seen["argv"] == [str(program), "a b", str(tmp_path)]
        assert seen["cwd"] == str(tmp_path)
        assert seen["stdin"] == ""
        assert seen["env"]["SM_CURRENT_HOST"] == f"algo-{rank // 2 + 1}"
        assert {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"} <= set(seen["env"])
        tensorflow = json.loads(seen["env"]["TF_CONFIG"])
        assert tensorflow["task"] == {"index": rank, "type": "worker"}
        workers = [worker.split(":") for worker in tensorflow["cluster"]["worker"]]
        assert [address for address, _ in workers] == ["127.0.0.1"] * 2 + ["127.0.0.2"] * 2
        ports.add(
            (
                have["MASTER_PORT"],
                seen["env"]["JAX_COORDINATOR_ADDRESS"].removeprefix("127.0.0.1:"),
                *(port for _, port in workers),
            )
        )
    (met,) = ports  # the same for all ranks
    assert len(set(met)) == 6


def test_many_long_arguments_pass_the_gate(tmp_path, nothing_left):
    done = simulate("native", PROGRAMS / "environment.py", "x" * 90_000, "--api-key", "hunter2", tmp_path, folder=tmp_path,
                    marker=nothing_left, layout="2x1")  # fmt: skip
    assert done.code == 0, done.text[-2000:]
    assert json.loads((tmp_path / "rank-1.json").read_text())["argv"][1] == "x" * 90_000


# The part tools runs it under Open MPI 4.1.
@pytest.mark.slow
@needs_mpi
def test_mpi_basics_on_three_simulated_hosts(tmp_path, nothing_left):
    done = simulate("mpirun", "mpi-basics", folder=tmp_path, marker=nothing_left, layout="3x2")
    assert done.code == 0, done.text
    assert done.last.startswith("ok nnodes=3 world_size=6")


def wait_until_heard(stranger, words):
    """The hub greets every peer, and closes one whose first line is no hello."""
    try:
        while stranger.recv(65536) and b"\n" in words:
            pass
    except ConnectionResetError:  # closed before it had read all
        pass


def test_strangers_on_the_control_port_do_not_disturb(tmp_path, nothing_left):
    job = Running("native", PROGRAMS / "faulty.py", "stop", folder=tmp_path, marker=nothing_left, ALGORUN_GATE_S="30")
    job.wait_for("] ready ", 4)
    port = int(job.supervisor("algo-1").environ()["ALGORUN_CONTROL_PORT"])
    strangers = []
    for words in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100_000,
        b'{"type":"hello"}\n',
        b'{"type":"end"}\n' * 10,
        UNENCODABLE,
    ):
        for _ in range(20):
            stranger = socket.create_connection(("127.0.0.1", port), timeout=60)
            try:
                stranger.sendall(words)
            except OSError:
                pass
            strangers.append((stranger, words))
    for stranger, words in strangers:
        wait_until_heard(stranger, words)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    assert job.log.read_text().count("saved") == 4
    for stranger, _ in strangers:
        stranger.close()


def test_no_line_is_torn_and_every_line_has_its_rank(tmp_path, nothing_left):
    done = simulate("native", PROGRAMS / "noisy.py", folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text[-2000:]
    seen = dict.fromkeys(range(4), 0)
    for line in done.out.splitlines():
        match = re.fullmatch(r"\[(\d) algo-(\d)\] <(\d):(\d+):x*>", line)
        if match:
            assert match[1] == match[3]
            assert int(match[1]) // 2 + 1 == int(match[2])
            assert int(match[4]) == seen[int(match[1])]
            seen[int(match[1])] += 1
        else:
            assert "<" not in line, line
    assert set(seen.values()) == {20_000}
    assert done.err.count("err:") == 4 * 2_000
    for host, rank in (("algo-1", 0), ("algo-2", 3)):
        log = done.folder / host / "output" / "data" / "logs" / f"rank-{rank:05d}.log"
        assert log.read_text().count(f"<{rank}:") == 22_000


def test_no_process_carries_our_marker_between_tests(tmp_path):
    assert ours(str(tmp_path)) == []
