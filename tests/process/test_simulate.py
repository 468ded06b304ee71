"""Several hosts on this machine, real processes and sockets, under every engine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from launcher.simulate import _free_port
from tests.conftest import CONTRACT, ENGINES, clean_environ, needs_mpi, ours

from .running import PROGRAMS, Running, simulate

UNENCODABLE = b'{"type":"hello","host":"algo-2","slots":1,"digest":{},"master_addr":"","master_port":0,"error":"","mac":"\\ud800"}\n'
BOUND_S = 5.0  # from a fault until every host has left


@pytest.mark.parametrize("engine", ENGINES)
def test_a_collective_over_two_hosts(engine, tmp_path, nothing_left):
    done = simulate(engine, PROGRAMS / "collective.py", folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert done.last == "ok nnodes=2 world_size=4"
    for rank, host in enumerate(["algo-1", "algo-1", "algo-2", "algo-2"]):
        assert f"[{rank} {host}] sum 10.0" in done.out
    for host in ("algo-1", "algo-2"):
        output = done.folder / host / "output"
        assert (output / "success").read_text() == ""
        assert not (output / "failure").exists()
        assert len(list((output / "data" / "logs").glob("rank-*.log"))) == 2


def contract(environ):
    return {k: v for k, v in environ.items() if k in CONTRACT or k.startswith(("ROLE_", "GROUP_"))}


def test_every_engine_gives_the_environment_that_torchrun_gives(tmp_path, nothing_left):
    """Bare torchrun on two nodes is the oracle."""
    program = PROGRAMS / "environment.py"
    bare = tmp_path / "bare"
    bare.mkdir()
    nodes = []
    for node in (0, 1):
        argv = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes=2",
            f"--node-rank={node}",
            "--nproc-per-node=2",
        ]
        argv += [
            "--rdzv-backend=static",
            "--master-addr=127.0.0.1",
            "--master-port=29731",
            str(program),
            "a b",
            str(bare),
        ]
        nodes.append(subprocess.Popen(argv, env=clean_environ(), stdin=subprocess.DEVNULL))
    assert [node.wait(60) for node in nodes] == [0, 0]
    for engine in ENGINES:
        engine = engine if isinstance(engine, str) else engine.values[0]
        folder = tmp_path / engine
        folder.mkdir()
        done = simulate(engine, program, "a b", folder, folder=folder, marker=nothing_left)
        assert done.code == 0, done.text
        for rank in range(4):
            expected = json.loads((bare / f"rank-{rank}.json").read_text())
            seen = json.loads((folder / f"rank-{rank}.json").read_text())
            want, have = contract(expected["env"]), contract(seen["env"])
            want["MASTER_PORT"] = have["MASTER_PORT"]  # a free one each time
            assert have == want
            assert seen["argv"] == [str(program), "a b", str(folder)]
            assert seen["cwd"] == str(folder)
            assert seen["stdin"] == ""
            assert seen["env"]["SM_CURRENT_HOST"] == f"algo-{rank // 2 + 1}"
            assert {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"} <= set(seen["env"])


FAULTS = [
    ("raise", 1, r"exception: rank 3 on algo-2, exit 1, attempt 1: ParserError: bad record 17"),
    ("exit7", 7, r"exit: rank 3 on algo-2, exit 7, attempt 1: last words"),
    ("SIGKILL", 137, r"signal: rank 3 on algo-2, exit 137 \(SIGKILL\), attempt 1: not sent by the launcher"),
    ("SIGSEGV", 139, r"signal: rank 3 on algo-2, exit 139 \(SIGSEGV\)"),
    ("abort", 134, r"signal: rank 3 on algo-2, exit 134 \(SIGABRT\)"),
    ("destructor", 1, r"exception: rank 3 on algo-2, exit 1, attempt 1: ParserError: the report must not wait"),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("mode", "code", "first_line"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_failing_rank_ends_all_hosts_with_one_root_cause(engine, mode, code, first_line, tmp_path, nothing_left):
    job = Running(engine, PROGRAMS / "faulty.py", mode, folder=tmp_path, marker=nothing_left)
    job.wait_for("up ", 4)
    started = time.monotonic()
    assert job.end() == code, job.log.read_text()
    assert time.monotonic() - started < BOUND_S + 0.5  # the program waits half a second before its fault
    texts = {job.failure(host) for host in ("algo-1", "algo-2")}
    assert len(texts) == 1
    text = texts.pop()
    assert re.match(first_line, text), text
    if mode == "raise":
        assert "in deep" in text
        assert "second line algo-2" in text
    last = job.log.read_text().strip().splitlines()[-1]
    assert last.startswith(f"failed nnodes=2 world_size=4 code={code} ")


def test_a_failure_carries_its_hosts_hint_to_every_host(tmp_path, nothing_left):
    script = tmp_path / "train.py"
    script.write_text("import os, time\nif os.environ['RANK'] == '3':\n    import no_such_module\ntime.sleep(60)\n")
    done = simulate("native", script, folder=tmp_path, marker=nothing_left)
    assert done.code == 1, done.text
    texts = [done.failure(host).splitlines() for host in ("algo-1", "algo-2")]
    assert texts[0] == texts[1]
    assert texts[0][0].endswith("ModuleNotFoundError: No module named 'no_such_module'")
    assert texts[0][-1].startswith("hint: name its package in requirements.txt")


def test_an_exception_that_a_rank_survives_is_no_failure(tmp_path, nothing_left):
    done = simulate("native", PROGRAMS / "faulty.py", "child", folder=tmp_path, marker=nothing_left)
    assert done.code == 0, done.text
    assert "survived" in done.out


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_on_one_host_lets_every_rank_save(engine, tmp_path, nothing_left):
    job = Running(engine, PROGRAMS / "faulty.py", "stop", folder=tmp_path, marker=nothing_left)
    job.wait_for("up ", 4)
    time.sleep(0.7)  # the ranks set their handlers half a second after they are up
    job.supervisor("algo-2").send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    text = job.log.read_text()
    for rank in range(4):
        assert f"saved {rank}" in text
    assert text.strip().splitlines()[-1] == "stopped nnodes=2 world_size=4 why=SIGTERM on algo-2"
    assert not (tmp_path / "algorun-simulate" / "algo-1" / "output" / "failure").exists()


def test_ctrl_c_stops_a_simulation(tmp_path, nothing_left):
    job = Running("native", PROGRAMS / "faulty.py", "stop", folder=tmp_path, marker=nothing_left)
    job.wait_for("up ", 4)
    time.sleep(0.7)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 0, job.log.read_text()
    assert job.log.read_text().count("saved") == 4


@pytest.mark.parametrize("engine", ["torchrun", pytest.param("mpirun", marks=needs_mpi)])
def test_a_stop_while_the_engine_starts_reaches_the_ranks_it_starts_later(engine, tmp_path, nothing_left):
    """torchrun and mpirun take seconds until their ranks are there; the stop is then seconds old."""
    program = tmp_path / "late.py"
    program.write_text("import signal, time\nsignal.sigwait([signal.SIGTERM])\n")
    job = Running(engine, program, folder=tmp_path, marker=nothing_left, layout="1x2", ALGORUN_GRACE_S="30")
    job.wait_for("leader", 1)
    job.supervisor("algo-1").send_signal(signal.SIGTERM)
    started = time.monotonic()
    assert job.end() == 0, job.log.read_text()
    assert time.monotonic() - started < 25
    assert "outlasted the grace" not in job.log.read_text()


def test_many_long_arguments_pass_the_gate(tmp_path, nothing_left):
    done = simulate("native", PROGRAMS / "environment.py", "x" * 90_000, "--api-key", "hunter2", tmp_path, folder=tmp_path,
                    marker=nothing_left, layout="2x1")  # fmt: skip
    assert done.code == 0, done.text[-2000:]
    assert json.loads((tmp_path / "rank-1.json").read_text())["argv"][1] == "x" * 90_000


def test_a_mismatch_does_not_tell_secrets(tmp_path, nothing_left):
    programs = [[PROGRAMS / "faulty.py", mode, "--api-key", f"hunter{mode}"] for mode in "ab"]
    codes, outs, _ = by_hand(tmp_path, nothing_left, programs)
    assert codes == [64, 64]
    assert "hunter" not in "".join(outs.values()) + (tmp_path / "algo-1" / "output" / "failure").read_text()


def test_a_late_follower_hears_of_an_error_of_the_leader(tmp_path, nothing_left):
    codes, outs, _ = by_hand(tmp_path, nothing_left, [[tmp_path / "absent.py"], [PROGRAMS / "faulty.py"]], (0, 1))
    assert codes == [64, 64], outs
    assert "absent.py" in (tmp_path / "algo-2" / "output" / "failure").read_text()


def test_an_error_that_nobody_could_be_told_is_still_in_failure(tmp_path, nothing_left):
    codes, outs, _ = by_hand(tmp_path, nothing_left, [None, [tmp_path / "absent.py"]])
    assert codes == [64], outs
    assert "absent.py" in (tmp_path / "algo-2" / "output" / "failure").read_text()


@needs_mpi
def test_mpi_basics_on_three_simulated_hosts(tmp_path, nothing_left):
    done = simulate("mpirun", "mpi-basics", folder=tmp_path, marker=nothing_left, layout="3x2")
    assert done.code == 0, done.text
    assert done.last.startswith("ok nnodes=3 world_size=6")


def test_ranks_that_ignore_a_stop_are_killed_at_the_grace(tmp_path, nothing_left):
    job = Running(
        "native", PROGRAMS / "faulty.py", "ignore", folder=tmp_path, marker=nothing_left, ALGORUN_GRACE_S="1.5"
    )
    job.wait_for("up ", 4)
    time.sleep(0.7)
    started = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    assert 1.4 < time.monotonic() - started < 1.5 + 2
    assert "ranks that outlasted the grace of 1.5 s are killed" in job.log.read_text()


def test_a_second_ctrl_c_does_not_wait_for_the_grace(tmp_path, nothing_left):
    job = Running("native", PROGRAMS / "faulty.py", "ignore", folder=tmp_path, marker=nothing_left)
    job.wait_for("up ", 4)
    time.sleep(0.7)
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert job.process.poll() is None
    started = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 0, job.log.read_text()
    assert time.monotonic() - started < BOUND_S
    assert job.log.read_text().count("interrupted again") == 2  # once a host


def test_a_simulation_that_is_killed_leaves_no_host_behind(tmp_path, nothing_left):
    job = Running("native", PROGRAMS / "faulty.py", "stop", folder=tmp_path, marker=nothing_left)
    job.wait_for("up ", 4)
    time.sleep(0.7)
    job.process.kill()
    job.process.wait(10)
    deadline = time.monotonic() + 15
    while ours(nothing_left) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ours(nothing_left) == []
    result = json.loads((tmp_path / "algorun-simulate" / "algo-1" / "output" / "data" / "result.json").read_text())
    assert result["kind"] == "stopped"  # its ranks were told, and saved


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("killed", "survivor"), [("algo-1", "algo-2"), ("algo-2", "algo-1")])
def test_a_host_whose_supervisor_is_killed(engine, killed, survivor, tmp_path, nothing_left):
    job = Running(engine, PROGRAMS / "faulty.py", "sleep", folder=tmp_path, marker=nothing_left)
    job.wait_for("up ", 4)
    supervisor = job.supervisor(killed)
    started = time.monotonic()
    supervisor.kill()
    assert job.end() == 66, job.log.read_text()
    assert time.monotonic() - started < BOUND_S
    assert job.failure(survivor).startswith(f"lost: {killed}, exit 66: ")


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_of_the_launcher_stays_in_the_temporary_folder(engine, tmp_path, nothing_left):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for mode, kill in (("exit7", False), ("sleep", True)):
        job = Running(
            engine, PROGRAMS / "faulty.py", mode, folder=tmp_path, marker=nothing_left, TMPDIR=str(temporary),
        )  # fmt: skip
        job.wait_for("up ", 4)
        if kill:
            job.supervisor("algo-1").kill()
        job.end()
        deadline = time.monotonic() + 3
        while os.listdir(temporary) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert os.listdir(temporary) == []


def by_hand(tmp_path, marker, programs, delays=(0, 0), own=({}, {}), **environ):
    """Supervisors started by hand, with arguments and variables of their own; their exit codes, outputs and seconds."""
    hosts, port, started = ["algo-1", "algo-2"], str(_free_port()), time.monotonic()
    children = {}
    for delay, host in sorted(zip(delays, hosts, strict=True)):
        time.sleep(max(0.0, started + delay - time.monotonic()))
        arguments = programs[hosts.index(host)]
        if arguments is None:
            continue
        base = tmp_path / host
        (base / "input" / "config").mkdir(parents=True)
        (base / "input" / "config" / "resourceconfig.json").write_text(
            json.dumps({"hosts": hosts, "current_host": host})
        )
        env = clean_environ(
            ALGORUN_TEST=marker, ALGORUN_ADDRESSES="algo-1=127.0.0.1,algo-2=127.0.0.2", ALGORUN_CONTROL_PORT=port,
            SAGEMAKER_BASE_DIR=str(base), GLOO_SOCKET_IFNAME="lo", **environ, **own[hosts.index(host)],
        )  # fmt: skip
        argv = [sys.executable, "-I", "-m", "launcher", "run", *map(str, arguments)]
        children[host] = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    outs = {host: child.communicate(timeout=60)[0] for host, child in children.items()}
    return [children[h].returncode for h in hosts if h in children], outs, time.monotonic() - started


def test_different_slots_make_consecutive_ranks(tmp_path, nothing_left):
    program = PROGRAMS / "collective.py"
    codes, outs, _ = by_hand(tmp_path, nothing_left, [["--slots", "2", program], ["--slots", "1", program]])
    assert codes == [0, 0], outs
    assert all(out.strip().splitlines()[-1] == "ok nnodes=2 world_size=3" for out in outs.values())
    assert "[2 algo-2] sum 6.0" in outs["algo-2"]


def test_another_command_line_on_one_host_is_refused_with_both_values(tmp_path, nothing_left):
    program = PROGRAMS / "faulty.py"
    codes, outs, seconds = by_hand(tmp_path, nothing_left, [[program, "a"], [program, "b"]])
    assert codes == [64, 64], outs
    assert seconds < 3 + 1  # the bound, and two interpreters on a busy machine
    texts = {(tmp_path / host / "output" / "failure").read_text() for host in ("algo-1", "algo-2")}
    assert len(texts) == 1
    text = texts.pop()
    assert text.startswith("mismatch: algo-2, exit 64: program differs: ")
    assert "faulty.py a on algo-1" in text
    assert "faulty.py b on algo-2" in text


def test_a_configuration_error_of_one_host_is_told_to_all(tmp_path, nothing_left):
    program = PROGRAMS / "faulty.py"
    codes, outs, _ = by_hand(tmp_path, nothing_left, [[program, "a"], [tmp_path / "absent.py"]])
    assert codes == [64, 64], outs
    for host in ("algo-1", "algo-2"):
        text = (tmp_path / host / "output" / "failure").read_text()
        assert text.startswith("configuration: algo-2, exit 64: program: ")
        assert "does not exist" in text


def test_a_host_that_never_comes_is_named(tmp_path, nothing_left):
    codes, outs, seconds = by_hand(tmp_path, nothing_left, [[PROGRAMS / "faulty.py", "a"], None], ALGORUN_GATE_S="2")
    assert codes == [65], outs
    assert seconds < 2 + 2
    text = (tmp_path / "algo-1" / "output" / "failure").read_text()
    assert text == "gate: algo-1, exit 65: hosts missing after 2 s: algo-2\n"


def test_another_token_is_named_on_both_sides(tmp_path, nothing_left):
    program = [PROGRAMS / "faulty.py", "a"]
    tokens = ({"ALGORUN_TOKEN": "one"}, {"ALGORUN_TOKEN": "two"})
    codes, outs, _ = by_hand(tmp_path, nothing_left, [program, program], own=tokens, ALGORUN_GATE_S="4")
    assert codes == [65, 64], outs
    assert "token differs (ALGORUN_TOKEN" in (tmp_path / "algo-2" / "output" / "failure").read_text()
    assert (
        "missing after 4 s: algo-2 (algo-2 came with another token"
        in (tmp_path / "algo-1" / "output" / "failure").read_text()
    )
    assert not any(token in out for out in outs.values() for token in ("'one'", "=one", "=two"))


def test_a_leader_that_never_comes_is_named(tmp_path, nothing_left):
    codes, outs, _ = by_hand(
        tmp_path, nothing_left, [None, [PROGRAMS / "faulty.py", "a"]], ALGORUN_GATE_S="1", ALGORUN_LEAVE_S="1"
    )
    assert codes == [65], outs
    assert "algo-1" in (tmp_path / "algo-2" / "output" / "failure").read_text()


@pytest.mark.parametrize("delays", [(2, 0), (0, 2)], ids=["leader", "follower"])
def test_a_late_host_is_waited_for(delays, tmp_path, nothing_left):
    program = ["--slots", "1", PROGRAMS / "collective.py"]
    codes, outs, _ = by_hand(tmp_path, nothing_left, [program, program], delays)
    assert codes == [0, 0], outs


def test_strangers_on_the_control_port_do_not_disturb(tmp_path, nothing_left):
    job = Running("native", PROGRAMS / "faulty.py", "stop", folder=tmp_path, marker=nothing_left, ALGORUN_GATE_S="30")
    job.wait_for("up ", 4)
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
            stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
            try:
                stranger.sendall(words)
            except OSError:
                pass
            strangers.append(stranger)
    time.sleep(0.5)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 0, job.log.read_text()
    assert job.log.read_text().count("saved") == 4
    for stranger in strangers:
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
