"""Who else may be at the control port: strangers, hosts with another token or name, other programs."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from tests.ports import own_port

from .running import PROGRAMS
from .supervisors import ADDRESSES, by_hand, started


def leader_last(tmp_path, marker, own, gate_s, followers_s=60, **environ):
    """Both hosts; the follower already looks for the leader when the leader's short gate opens."""
    program = [PROGRAMS / "faulty.py", "a"]
    limits = ({"ALGORUN_GATE_S": str(gate_s)}, {"ALGORUN_GATE_S": str(followers_s)})
    own = [limit | variables for limit, variables in zip(limits, own, strict=True)]
    return by_hand(tmp_path, marker, [program, program], (1, 0), own=own, **environ)[:2]


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
        for number in range(200):
            with connected(port, "127.0.0.7") as sock:
                sock.sendall(b"x" * 50 + b"\n")
                while number == 199 and sock.recv(4096):
                    pass

    (tmp_path / "quick.sh").write_text("true\n")
    port, hosts, program = own_port(), ["algo-1", "algo-2"], [tmp_path / "quick.sh"]
    variables = {"ALGORUN_ADDRESSES": ADDRESSES, "ALGORUN_CONTROL_PORT": str(port)}
    leader = started(tmp_path, nothing_left, "algo-1", hosts, program, **variables)
    strangers(port)  # the gate is open until the other host comes, however long they take
    follower = started(tmp_path, nothing_left, "algo-2", hosts, program, **variables)
    out = leader.communicate(timeout=60)[0]
    assert leader.returncode == 0, out
    follower.communicate(timeout=60)
    lines = [line for line in out.splitlines() if "refused" in line]
    assert lines == [
        r"algorun: warning: refused a connection from 127.0.0.9: no hello, it sent 'GET /\x1b[2J HTTP/1.1\r'",
        f"algorun: warning: refused 200 more connections, the last from 127.0.0.7: no hello, it sent '{'x' * 40}'..",
    ]


def refused(own, folder, marker, code=64, **environ):
    """A follower that the leader refuses: what the leader said about it, and both failures."""
    codes, outs = leader_last(folder, marker, own, gate_s=3, followers_s=3, **environ)
    assert codes == [65, code], outs
    line, *_ = [line for line in outs["algo-1"].splitlines() if "refused" in line]
    assert line.startswith("algorun: warning: refused a connection from 127.0.0.")
    return line, [(folder / host / "output" / "failure").read_text() for host in ("algo-1", "algo-2")], outs


def another_token(folder, marker):
    """Neither side can prove itself to the other one: the follower tries until the limit, as nobody's word may end the job."""
    return refused(({"ALGORUN_TOKEN": "one"}, {"ALGORUN_TOKEN": "two"}), folder, marker, 65, ALGORUN_LEAVE_S="1")


@pytest.mark.parametrize("begun", [another_token], indirect=True)
def test_another_token_is_named_on_both_sides(begun):
    line, failures, outs = begun
    assert " as algo-2: the job's token differs (ALGORUN_TOKEN, " in line
    assert "missing after 3 s: algo-2 (algo-2 came with another token" in failures[0]
    assert "hub not reached after 3 s: algo-1 (127.0.0.1 port " in failures[1]
    assert "does not prove that it holds the job's token (ALGORUN_TOKEN, " in failures[1]
    assert "it sent \"the job's token differs" in failures[1]
    assert "does not prove that it holds the job's token" in outs["algo-2"]
    assert not any(token in out for out in outs.values() for token in ("'one'", "=one", "=two"))


def another_address(folder, marker):
    return refused(({}, {"ALGORUN_ADDRESSES": "algo-1=127.0.0.1,algo-2=127.0.0.5"}), folder, marker)


@pytest.mark.parametrize("begun", [another_address], indirect=True)
def test_a_host_of_another_address_is_named_on_the_leader(begun):
    line, _, _ = begun
    assert " as algo-2: algo-2 resolves to 127.0.0.2, but the connection comes from 127.0.0.5" in line


def doubled(folder, marker):
    """Three hosts of a job of three, of which two have one name, and one of another job."""
    program, port = [PROGRAMS / "faulty.py", "a"], str(own_port())
    addresses = ",".join(f"algo-{number}=127.0.0.{number}" for number in (1, 2, 3, 9))
    common = {"ALGORUN_ADDRESSES": addresses, "ALGORUN_CONTROL_PORT": port, "ALGORUN_GATE_S": "60"}
    hosts = ["algo-1", "algo-2", "algo-3"]
    others = [
        started(folder, marker, "algo-2", hosts, program, **common),
        started(folder, marker, "algo-2", hosts, program, folder="second", **common),
        started(folder, marker, "algo-9", ["algo-1", "algo-9"], program, **common),
    ]
    time.sleep(1)  # they look for the leader already when its short gate opens
    leader = started(folder, marker, "algo-1", hosts, program, **(common | {"ALGORUN_GATE_S": "4"}))
    outs = [child.communicate(timeout=60)[0] for child in (leader, *others)]
    return sorted(child.returncode for child in (leader, *others)), outs


@pytest.mark.parametrize("begun", [doubled], indirect=True)
def test_a_second_host_of_a_name_and_one_of_another_job_are_named_on_the_leader(begun):
    codes, outs = begun
    assert codes == [64, 64, 65, 65], outs
    lines = [line for line in outs[0].splitlines() if "refused" in line]
    assert len(lines) == 2, outs
    whole = " ".join(lines)
    known = ("127.0.0.9: 'algo-9' is not one of the job's hosts", "127.0.0.2 as algo-2: algo-2 has said hello already")
    assert all(each in whole for each in known), lines


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


def answered(says, gate_s, folder, marker):
    """A follower whose leader's port has another program behind it."""
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
        limits = {"ALGORUN_GATE_S": str(gate_s), "ALGORUN_LEAVE_S": "1"}
        codes, outs, _ = by_hand(folder, marker, program, meanwhile=answer, **limits)
        for sock in accepted:
            sock.close()
    assert codes == [65], outs
    return outs["algo-2"], (folder / "algo-2" / "output" / "failure").read_text()


# The same code with another value or at another moment.
@pytest.mark.slow(but=["silent", "line"])
@pytest.mark.parametrize(
    ("begun", "gate_s", "warned", "told"),
    [
        (partial(answered, b"", 5), 5, "has accepted a connection and said nothing for 3 s", "accepts connections and says nothing"),
        (partial(answered, b"SSH-2.0-x\x1b[2J\r\n", 2), 2, r"is no algorun hub, it sent 'SSH-2.0-x\x1b[2J\r'", "is another program's: it sent 'SSH-2"),
        (partial(answered, b"\x15\x03\x01", 5), 5, r"is no algorun hub, it sent '\x15\x03\x01'", "is another program's: it sent '"),
        (partial(answered, b"\x15\x03\x01", 1), 1, "", "is another program's: it sent '"),
    ],
    ids=["silent", "line", "bytes", "bytes, the wait ends before the silence is long"],
    indirect=["begun"],
)  # fmt: skip
def test_another_program_where_the_hub_should_be_is_named(begun, gate_s, warned, told):
    out, failure = begun
    place = r"127\.0\.0\.1 port \d+ "
    warnings = [line for line in out.splitlines() if "algorun: warning" in line]
    assert len(warnings) == bool(warned), out
    for line in warnings:
        assert re.search(f"warning: algo-1, the leader: {place}{re.escape(warned)}; .*goes on trying$", line)
    found = rf"gate: algo-1, exit 65: hub not reached after {gate_s} s: algo-1 \({place}{re.escape(told)}"
    assert re.match(found, failure), failure
