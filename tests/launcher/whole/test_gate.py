"""Supervisors that meet at the gate, or do not: who is late, who differs, and what all are told."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from algorun.commands.simulate import _free_port
from tests.conftest import clean_environ

from .running import PROGRAMS

ADDRESSES = "algo-1=127.0.0.1,algo-2=127.0.0.2"


def started(tmp_path, marker, host, hosts, arguments, folder="", **environ):
    """A supervisor of one host, whose file lists these hosts."""
    base = tmp_path / (folder or host)
    (base / "input" / "config").mkdir(parents=True)
    (base / "input" / "config" / "resourceconfig.json").write_text(json.dumps({"hosts": hosts, "current_host": host}))
    env = clean_environ(ALGORUN_TEST=marker, SAGEMAKER_BASE_DIR=str(base), GLOO_SOCKET_IFNAME="lo", **environ)
    argv = [sys.executable, "-I", "-m", "algorun", "run", *map(str, arguments)]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def by_hand(tmp_path, marker, programs, delays=(0, 0), own=({}, {}), meanwhile=lambda port: None, **environ):
    """Supervisors started by hand, with arguments and variables of their own; their exit codes, outputs and seconds."""
    hosts, port, began = ["algo-1", "algo-2"], str(_free_port()), time.monotonic()
    children = {}
    for delay, host in sorted(zip(delays, hosts, strict=True)):
        time.sleep(max(0.0, began + delay - time.monotonic()))
        arguments = programs[hosts.index(host)]
        if arguments is not None:
            variables = {"ALGORUN_ADDRESSES": ADDRESSES, "ALGORUN_CONTROL_PORT": port, **environ}
            variables |= own[hosts.index(host)]
            children[host] = started(tmp_path, marker, host, hosts, arguments, **variables)
    meanwhile(int(port))
    outs = {host: child.communicate(timeout=60)[0] for host, child in children.items()}
    return [children[h].returncode for h in hosts if h in children], outs, time.monotonic() - began


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


def test_different_slots_make_consecutive_ranks(tmp_path, nothing_left):
    program = PROGRAMS / "collective.py"
    codes, outs, _ = by_hand(tmp_path, nothing_left, [["--slots", "2", program], ["--slots", "1", program]])
    assert codes == [0, 0], outs
    assert all(out.strip().splitlines()[-1] == "ok nnodes=2 world_size=3" for out in outs.values())
    assert "[2 algo-2] sum 6.0" in outs["algo-2"]


def test_another_command_line_on_one_host_is_refused_with_both_values(tmp_path, nothing_left):
    program = PROGRAMS / "faulty.py"
    codes, outs, seconds = by_hand(tmp_path, nothing_left, [[program, "a"], [program, "b"]], ALGORUN_LEAVE_S="60")
    assert codes == [64, 64], outs
    assert seconds < 9  # nobody waits for a host to leave; most of it is two interpreters on a busy machine
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
    limits = {"ALGORUN_GATE_S": "2", "ALGORUN_LEAVE_S": "60"}
    codes, outs, seconds = by_hand(tmp_path, nothing_left, [[PROGRAMS / "faulty.py", "a"], None], **limits)
    assert codes == [65], outs
    assert seconds < 20  # a host that never came is not waited for again; the text has the seconds of the gate
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


def connected(port, source="127.0.0.1", timeout_s=20):
    """A connection to the leader's control port, as soon as it listens."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 5, (source, 0))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_refused_peers_are_named_and_a_flood_of_them_is_counted(tmp_path, nothing_left):
    def strangers(port):
        with connected(port, "127.0.0.9") as sock:
            sock.sendall(b"GET /\x1b[2J HTTP/1.1\r\n\r\n")
            while sock.recv(4096):  # until it is closed
                pass
        for _ in range(200):
            with connected(port, "127.0.0.7") as sock:
                sock.sendall(b"x" * 50 + b"\n")

    program = [PROGRAMS / "faulty.py", "a"]
    codes, outs, _ = by_hand(tmp_path, nothing_left, [program, None], meanwhile=strangers, ALGORUN_GATE_S="4")
    assert codes == [65], outs
    lines = [line for line in outs["algo-1"].splitlines() if "refused" in line]
    assert lines == [
        r"algorun: warning: refused a connection from 127.0.0.9: no hello, it sent 'GET /\x1b[2J HTTP/1.1\r'",
        f"algorun: warning: refused 200 more connections, the last from 127.0.0.7: no hello, it sent '{'x' * 40}'..",
    ]


@pytest.mark.parametrize(
    ("own", "environ", "why"),
    [
        (({"ALGORUN_TOKEN": "one"}, {"ALGORUN_TOKEN": "two"}), {}, "the job's token differs (ALGORUN_TOKEN, "),
        (({}, {"ALGORUN_ADDRESSES": "algo-1=127.0.0.1,algo-2=127.0.0.5"}), {},
         "algo-2 resolves to 127.0.0.2, but the connection comes from 127.0.0.5"),
    ],
    ids=["token", "address"],
)  # fmt: skip
def test_a_refused_host_is_named_on_the_leader(own, environ, why, tmp_path, nothing_left):
    program = [PROGRAMS / "faulty.py", "a"]
    codes, outs, _ = by_hand(tmp_path, nothing_left, [program, program], own=own, ALGORUN_GATE_S="3", **environ)
    assert codes == [65, 64], outs
    (line,) = [line for line in outs["algo-1"].splitlines() if "refused" in line]
    assert line.startswith("algorun: warning: refused a connection from 127.0.0.")
    assert f" as algo-2: {why}" in line


def test_a_second_host_of_a_name_and_one_of_another_job_are_named_on_the_leader(tmp_path, nothing_left):
    program, port = [PROGRAMS / "faulty.py", "a"], str(_free_port())
    addresses = ",".join(f"algo-{number}=127.0.0.{number}" for number in (1, 2, 3, 9))
    common = {"ALGORUN_ADDRESSES": addresses, "ALGORUN_CONTROL_PORT": port, "ALGORUN_GATE_S": "6"}
    hosts = ["algo-1", "algo-2", "algo-3"]
    job = [started(tmp_path, nothing_left, host, hosts, program, **common) for host in hosts[:2]]
    others = [
        started(tmp_path, nothing_left, "algo-2", hosts, program, folder="second", **common),
        started(tmp_path, nothing_left, "algo-9", ["algo-1", "algo-9"], program, **common),
    ]
    outs = [child.communicate(timeout=60)[0] for child in (*job, *others)]
    assert sorted(child.returncode for child in (*job, *others)) == [64, 64, 65, 65], outs
    lines = [line for line in outs[0].splitlines() if "refused" in line]
    assert len(lines) == 2, outs
    whole = " ".join(lines)
    known = ("127.0.0.9: 'algo-9' is not one of the job's hosts", "127.0.0.2 as algo-2: algo-2 has said hello already")
    assert all(each in whole for each in known), lines


def test_a_leader_that_never_comes_is_named(tmp_path, nothing_left):
    codes, outs, _ = by_hand(
        tmp_path, nothing_left, [None, [PROGRAMS / "faulty.py", "a"]], ALGORUN_GATE_S="1", ALGORUN_LEAVE_S="1"
    )
    assert codes == [65], outs
    text = (tmp_path / "algo-2" / "output" / "failure").read_text()
    assert re.match(r"gate: .*hub not reached after 1 s: algo-1 \(127.0.0.1 port \d+: Connection refused\)", text), text


def test_the_program_that_holds_the_control_port_is_named(tmp_path, nothing_left):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = [PROGRAMS / "faulty.py", "a"]
        codes, outs, _ = by_hand(tmp_path, nothing_left, [program, None], ALGORUN_CONTROL_PORT=str(port))
    assert codes == [64], outs
    name = Path("/proc/self/comm").read_text().strip()
    assert (
        f"ALGORUN_CONTROL_PORT: port {port} on 127.0.0.1: Address already in use by {name} (pid {os.getpid()});"
        in outs["algo-1"]
    )


@pytest.mark.parametrize(
    ("says", "warned", "told"),
    [
        (b"", "has accepted a connection and said nothing for 3 s", "accepts connections and says nothing"),
        (b"SSH-2.0-x\x1b[2J\r\n", r"is no algorun hub, it sent 'SSH-2.0-x\x1b[2J\r'", "is another program's: it sent 'SSH-2"),
        (b"\x15\x03\x01", r"is no algorun hub, it sent '\x15\x03\x01'", "is another program's: it sent '"),
    ],
    ids=["silent", "line", "bytes"],
)  # fmt: skip
def test_another_program_where_the_hub_should_be_is_named(says, warned, told, tmp_path, nothing_left):
    accepted = []

    def serve(server):
        with contextlib.suppress(OSError):  # until it is closed
            while True:
                accepted.append(server.accept()[0])
                accepted[-1].sendall(says)

    with contextlib.ExitStack() as stack:

        def answer(port):
            server = stack.enter_context(socket.create_server(("127.0.0.1", port)))
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=serve, args=[server], daemon=True).start()

        program = [None, [PROGRAMS / "faulty.py", "a"]]
        limits = {"ALGORUN_GATE_S": "5", "ALGORUN_LEAVE_S": "1"}
        codes, outs, _ = by_hand(tmp_path, nothing_left, program, meanwhile=answer, **limits)
        for sock in accepted:
            sock.close()
    assert codes == [65], outs
    place = r"127\.0\.0\.1 port \d+ "
    warnings = [line for line in outs["algo-2"].splitlines() if "algorun: warning" in line]
    assert len(warnings) == 1, outs
    assert re.search(f"warning: algo-1, the leader: {place}{re.escape(warned)}; .*goes on trying$", warnings[0])
    text = (tmp_path / "algo-2" / "output" / "failure").read_text()
    assert re.match(rf"gate: algo-1, exit 65: hub not reached after 5 s: algo-1 \({place}{re.escape(told)}", text), text


def orders(*each):
    """Lists of hosts by their last digits, for algo-1, algo-2 and so on."""
    return [[f"algo-{digit}" for digit in digits] for digits in each]


def ordered(tmp_path, marker, lists, delays, **environ):
    """Hosts whose files list these orders: their codes, the different texts of their failures, and the seconds."""
    port, began, children = str(_free_port()), time.monotonic(), {}
    addresses = ",".join(f"algo-{number}=127.0.0.{number}" for number in range(1, 4))
    for delay, number in sorted(zip(delays, range(1, len(lists) + 1), strict=True)):
        time.sleep(max(0.0, began + delay - time.monotonic()))
        children[number] = started(
            tmp_path, marker, f"algo-{number}", lists[number - 1], [PROGRAMS / "faulty.py", "a"],
            ALGORUN_ADDRESSES=addresses, ALGORUN_CONTROL_PORT=port, **environ,
        )  # fmt: skip
    for child in children.values():
        child.communicate(timeout=60)
    texts = {(tmp_path / f"algo-{number}" / "output" / "failure").read_text() for number in children}
    return [children[number].returncode for number in sorted(children)], texts, time.monotonic() - began


@pytest.mark.parametrize("environ", [{}, {"ALGORUN_TOKEN": "t"}], ids=["address", "token"])
@pytest.mark.parametrize(
    ("lists", "differs"),
    [
        (orders("12", "21"), {"algo-1,algo-2 on algo-1, algo-2,algo-1 on algo-2"}),
        (orders("123", "123", "312"), {"algo-1,algo-2,algo-3 on algo-1, algo-3,algo-1,algo-2 on algo-3"}),
        (orders("123", "312", "312"), {"algo-1,algo-2,algo-3 on algo-1, algo-3,algo-1,algo-2 on algo-3"}),
        (orders("213", "213", "312"), {"algo-2,algo-1,algo-3 on algo-2, algo-3,algo-1,algo-2 on algo-3"}),
        (orders("123", "213", "312"), {  # whichever comes first
            "algo-1,algo-2,algo-3 on algo-1, algo-2,algo-1,algo-3 on algo-2",
            "algo-1,algo-2,algo-3 on algo-1, algo-3,algo-1,algo-2 on algo-3",
            "algo-2,algo-1,algo-3 on algo-2, algo-3,algo-1,algo-2 on algo-3",
        }),
    ],
    ids=["12,21", "123,123,312", "123,312,312", "213,213,312", "123,213,312"],
)  # fmt: skip
def test_files_that_list_different_orders_are_told_at_once(lists, differs, environ, tmp_path, nothing_left):
    codes, texts, seconds = ordered(tmp_path, nothing_left, lists, [0.0] * len(lists), **environ)
    assert codes == [64] * len(lists), texts
    assert len(texts) == 1, texts
    assert texts.pop().partition("hosts differs: ")[2].strip() in differs
    assert seconds < 12  # 1.5 s to the first look; most of it is interpreters on a busy machine


def test_a_late_follower_of_a_leader_that_does_not_judge_hears_of_it_too(tmp_path, nothing_left):
    """algo-1 and algo-3 have ended the job when the host comes that algo-3 would have led."""
    codes, texts, _ = ordered(tmp_path, nothing_left, orders("123", "321", "321"), [0.0, 4.0, 0.0], ALGORUN_GATE_S="30")
    assert codes == [64] * 3, texts
    assert len(texts) == 1, texts


def test_hosts_that_are_waited_for_are_named(tmp_path, nothing_left):
    program = [PROGRAMS / "faulty.py", "a"]
    limits = {"ALGORUN_GATE_S": "12", "ALGORUN_LEAVE_S": "1"}
    codes, outs, _ = by_hand(tmp_path, nothing_left, [program, None], **limits)
    assert codes == [65], outs
    lines = [line for line in outs["algo-1"].splitlines() if "waiting" in line]
    assert lines == ["algorun: waiting for algo-2 (of 2 hosts)"]


def test_a_follower_says_what_it_waits_for(tmp_path, nothing_left):
    program = [PROGRAMS / "faulty.py", "a"]
    limits = {"ALGORUN_GATE_S": "12", "ALGORUN_LEAVE_S": "1"}
    codes, outs, _ = by_hand(tmp_path, nothing_left, [None, program], **limits)
    assert codes == [65], outs
    (line,) = [line for line in outs["algo-2"].splitlines() if "waiting" in line]
    assert re.fullmatch(r"algorun: waiting for algo-1, the leader \(127.0.0.1 port \d+: Connection refused\)", line), (
        line
    )


@pytest.mark.parametrize("delays", [(2, 0), (0, 2)], ids=["leader", "follower"])
def test_a_late_host_is_waited_for(delays, tmp_path, nothing_left):
    program = ["--slots", "1", PROGRAMS / "again.py", 0, 0]
    codes, outs, _ = by_hand(tmp_path, nothing_left, [program, program], delays)
    assert codes == [0, 0], outs
    assert [f"[{rank} algo-{rank + 1}] fine" in outs[f"algo-{rank + 1}"] for rank in (0, 1)] == [True, True]
    assert all(out.strip().splitlines()[-1] == "ok nnodes=2 world_size=2" for out in outs.values())
    assert not [line for out in outs.values() for line in out.splitlines() if "waiting" in line or "warning" in line]
