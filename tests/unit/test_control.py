"""The control channel's state machines under random orders of events, with a clock of their own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.control import messages
from launcher.control.failure import Failure, Raised
from launcher.control.hub import Hub
from launcher.control.hub import State as HubState
from launcher.control.member import Conclude, Member, Signal, Start, State, ToHub
from launcher.control.messages import Hello, Ready, Verdict
from launcher.values import Limits

LIMITS = Limits()


def hello(host: str, **digest: str) -> Hello:
    return Hello(host, {"version": "1", **digest})


def ready(host: str, slots: int = 2, **digest: str) -> Ready:
    leads = host == "algo-1"
    return Ready(slots, {"program": "a", **digest}, "algo-1" if leads else "", 1234 if leads else 0)


class Job:
    """Hub and members wired together: messages arrive in order per host, hosts in any order."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.hosts = [f"algo-{i + 1}" for i in range(count)]
        self.hub = Hub(0.0, self.hosts, LIMITS)
        self.members = {host: Member(0.0, host, "algo-1", LIMITS) for host in self.hosts}
        self.to_hub: dict[str, list] = {host: [] for host in self.hosts}
        self.to_host: dict[str, list] = {host: [] for host in self.hosts}
        self.verdicts: dict[str, Verdict] = {}
        self.signals: dict[str, list[int]] = {host: [] for host in self.hosts}
        self.dead: set[str] = set()

    def act(self, host: str, actions: list) -> None:
        for action in actions:
            match action:
                case ToHub(message):
                    self.to_hub[host].append(message)
                case Conclude(verdict):
                    assert host not in self.verdicts, "two verdicts on one host"
                    self.verdicts[host] = verdict
                    self.to_hub[host].append({"type": "bye"})
                case Signal(number):
                    self.signals[host].append(number)
                case Start():
                    pass

    def send(self, sends: list) -> None:
        for host, message in sends:
            if host not in self.dead:
                self.to_host[host].append(message)

    def join(self, host: str, **digest: str) -> None:
        """Says hello, and is ready at once; what is under way may be overtaken by others."""
        self.arrive(host, **digest)
        self.get_ready(host)

    def get_ready(self, host: str, **digest: str) -> None:
        self.act(host, self.members[host].prepared(self.now))
        self.to_hub[host].append(ready(host, **digest).message())

    def arrive(self, host: str, **digest: str) -> None:
        """Says hello, and prepares from now on."""
        self.members[host].joined(self.now)
        self.send(self.hub.hello(self.now, hello(host, **digest)))
        self.act(host, self.members[host].preparing(self.now))

    def step(self) -> bool:
        """Delivers one message, of a host chosen by chance; False when none is under way."""
        ways = [(d, h) for d in ("up", "down") for h in self.hosts if (self.to_hub if d == "up" else self.to_host)[h]]
        if not ways:
            return False
        direction, host = self.random.choice(ways)
        if direction == "up":
            self.hear(host, self.to_hub[host].pop(0))
        else:
            self.receive(host, self.to_host[host].pop(0))
        return True

    def hear(self, host: str, message: dict) -> None:
        message = messages.decode(messages.encode(message).rstrip(b"\n"))
        match message["type"]:
            case "ready":
                self.send(self.hub.ready(self.now, host, messages.parse_ready(message)))
            case "fail":
                self.send(self.hub.fail(self.now, host, messages.parse_failure(message)))
            case "stop":
                self.send(self.hub.stop(self.now, host, message["why"]))
            case "done":
                self.send(self.hub.done(self.now, host))
            case "bye":
                self.send(self.hub.bye(self.now, host))
            case "heartbeat":
                self.send(self.hub.heartbeat(self.now, host))

    def receive(self, host: str, message: dict) -> None:
        member = self.members[host]
        message = messages.decode(messages.encode(message).rstrip(b"\n"))
        member.heard(self.now)
        match message["type"]:
            case "go":
                first = 2 * self.hosts.index(host)
                self.act(host, member.go(self.now, messages.parse_go(message), {0: first, 1: first + 1}))
            case "stop":
                self.act(host, member.stop(self.now, message["why"]))
            case "end":
                self.act(host, member.end(self.now, messages.parse_verdict(message)))

    def settle(self) -> None:
        while self.step():
            pass

    def pass_time(self, seconds: float) -> None:
        """Time goes on to every deadline in between, as the shells do it."""
        until = self.now + seconds
        for _ in range(100_000):
            live = [m for h, m in self.members.items() if h not in self.dead and m.state is not State.LEFT]
            due = min([self.hub.deadline, *(m.deadline for m in live)])
            if due > until:
                break
            self.now = max(self.now, due)
            self.send(self.hub.tick(self.now))
            for host, member in self.members.items():
                if host not in self.dead and member.state is not State.LEFT:
                    self.act(host, member.tick(self.now))
                    if host in self.verdicts:
                        member.left()
            self.settle()
        else:
            raise AssertionError("a deadline that does not pass")
        self.now = until

    def kill(self, host: str) -> None:
        self.dead.add(host)
        self.to_host[host].clear()
        self.to_hub[host].clear()
        if host == "algo-1":
            for other in self.hosts[1:]:
                self.act(other, self.members[other].hub_lost(self.now, "hub lost: connection closed"))
        else:
            self.send(self.hub.lost(self.now, host, "host lost: connection closed"))


def running(count: int, seed: int = 0) -> Job:
    job = Job(count, seed)
    for host in job.hosts:
        job.join(host)
    job.settle()
    assert all(member.state is State.RUN for member in job.members.values())
    return job


def finish(job: Job, host: str, code: int = 0) -> None:
    for local in (0, 1):
        job.act(host, job.members[host].rank_exited(job.now, local, code))
    job.act(host, job.members[host].all_ranks_gone(job.now))


def test_all_hosts_leave_together_after_the_last_is_done():
    job = running(3)
    for host in job.hosts[:2]:
        finish(job, host)
    job.settle()
    assert not job.verdicts, "an early 0 must not end the others"
    finish(job, "algo-3")
    job.settle()
    assert {v.kind for v in job.verdicts.values()} == {"ok"}
    assert len(job.verdicts) == 3
    assert job.hub.finished


def test_the_gate_names_who_is_missing():
    job = Job(3)
    job.join("algo-1")
    job.join("algo-3")
    job.settle()
    job.pass_time(LIMITS.gate_s + 0.1)
    verdict = job.verdicts["algo-1"]
    assert (verdict.kind, verdict.code) == ("failed", 65)
    assert "algo-2" in verdict.failure.message
    assert job.verdicts["algo-3"] == verdict


def test_a_host_that_never_reaches_the_hub_gives_up():
    member = Member(0.0, "algo-2", "algo-1", LIMITS)
    actions = member.tick(LIMITS.gate_s + LIMITS.leave_s + 1)
    assert [a.verdict.code for a in actions if isinstance(a, Conclude)] == [65]


def test_a_mismatch_names_the_key_and_both_values():
    job = Job(2)
    job.join("algo-1", image="aaa")
    job.join("algo-2", image="bbb")
    job.settle()
    assert {v.code for v in job.verdicts.values()} == {64}
    assert "image differs: aaa on algo-1, bbb on algo-2" in job.verdicts["algo-2"].failure.message
    assert job.verdicts["algo-1"] == job.verdicts["algo-2"]


def test_another_program_is_named_whoever_is_ready_first():
    for order in (("algo-1", "algo-2", "algo-3"), ("algo-3", "algo-2", "algo-1")):
        job = Job(3)
        for host in job.hosts:
            job.arrive(host)
        for host in order:
            job.get_ready(host, program="b" if host == "algo-2" else "a")
            job.settle()
        assert {v.code for v in job.verdicts.values()} == {64}
        assert "program differs: a on algo-1, b on algo-2" in job.verdicts["algo-3"].failure.message


def test_a_host_that_cannot_get_ready_ends_the_job_with_its_reason():
    job = Job(3)
    for host in job.hosts:
        job.arrive(host)
    job.get_ready("algo-1")
    job.act("algo-2", job.members["algo-2"].broken(job.now, Failure("setup", "algo-2", 64, "pip failed")))
    job.settle()
    assert [job.verdicts[host].failure.headline() for host in job.hosts] == ["setup: algo-2, exit 64: pip failed"] * 3


def test_hosts_may_prepare_for_longer_than_the_gate_waits():
    job = Job(2)
    for host in job.hosts:
        job.arrive(host)
    job.get_ready("algo-1")
    job.pass_time(LIMITS.gate_s * 2)
    assert not job.verdicts
    job.get_ready("algo-2")
    job.settle()
    assert all(member.state is State.RUN for member in job.members.values())


def test_an_endless_preparation_is_ended_and_named():
    job = Job(2)
    for host in job.hosts:
        job.arrive(host)
    job.get_ready("algo-1")
    job.pass_time(LIMITS.prepare_s + 1)
    assert {v.failure.headline() for v in job.verdicts.values()} == {
        "setup: algo-2, exit 65: not ready after 1800 s (ALGORUN_PREPARE_S)"
    }
    assert 9 in job.signals["algo-2"]


def test_a_silent_host_at_the_gate_is_named_by_the_hub():
    """Its supervisor lives and beats, but never gets ready: the hub's own limit ends the job."""
    job = Job(2)
    job.join("algo-1")
    job.members["algo-2"].joined(job.now)
    job.send(job.hub.hello(job.now, hello("algo-2")))
    job.pass_time(LIMITS.gate_s + LIMITS.prepare_s + 5)
    assert {v.failure.message for v in job.verdicts.values()} == {"hosts not ready after 2400 s: algo-2"}


@settings(max_examples=300, deadline=None)
@given(
    count=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    events=st.lists(
        st.tuples(
            st.sampled_from(["arrive", "ready", "broken", "kill", "stop", "wait", "deliver"]),
            st.integers(0, 3),
            st.sampled_from([0.0, 0.5, 11.0, 700.0, 2000.0]),
        ),
        max_size=14,
    ),
)
def test_whatever_happens_at_the_gate_every_living_host_gets_one_and_the_same_verdict(count, seed, events):
    job = Job(count, seed)
    came: set[str] = set()
    for kind, index, seconds in [("arrive", 0, 0.0), *events]:
        host = job.hosts[index % count]
        if host in job.dead:
            continue
        if kind == "arrive" and host not in came and host not in job.verdicts:
            came.add(host)
            job.arrive(host)
        elif kind == "wait":
            job.pass_time(seconds)
        elif kind == "deliver":
            job.step()
        elif host in came and kind == "ready":
            job.get_ready(host)
        elif host in came and kind == "broken":
            job.act(host, job.members[host].broken(job.now, Failure("setup", host, 64, "no code")))
        elif host in came and kind == "stop":
            job.act(host, job.members[host].stop_asked(job.now, f"SIGTERM on {host}"))
        elif host in came and kind == "kill":
            job.kill(host)
        if "algo-1" in job.dead:
            break
    job.settle()
    job.pass_time(LIMITS.gate_s + 3 * LIMITS.prepare_s)
    if all(job.members[host].state is State.RUN for host in job.hosts if host not in job.dead):
        return  # all were ready: the job runs
    living = [host for host in job.hosts if host not in job.dead and host in came]
    assert set(living) <= set(job.verdicts)
    if "algo-1" not in job.dead:
        assert len({job.verdicts[host] for host in living}) <= 1
        assert job.hub.finished


@pytest.mark.parametrize(("host", "why"), [("algo-9", "not one of the job's hosts"), ("algo-2", "said hello already")])
def test_strangers_and_doubles_are_refused_and_the_job_goes_on(host, why):
    job = Job(3)
    job.join("algo-1")
    job.join("algo-2")
    ((to, message),) = job.hub.hello(job.now, hello(host))
    assert (to, message["type"]) == (host, "refuse")
    assert why in message["why"]
    job.join("algo-3")
    job.settle()
    assert job.hub.state is HubState.RUN


def test_silence_of_a_host_ends_the_job():
    job = running(2)
    job.dead.add("algo-2")  # its messages stop, its connection stays
    job.to_hub["algo-2"].clear()
    job.pass_time(LIMITS.heartbeat_timeout_s + LIMITS.blame_s + 1.5)
    assert job.verdicts["algo-1"].code == 66
    assert "algo-2" in job.verdicts["algo-1"].failure.headline()


def test_silence_of_the_hub_ends_a_host():
    member = Member(0.0, "algo-2", "algo-1", LIMITS)
    member.joined(0.0)
    actions = member.tick(LIMITS.heartbeat_timeout_s)
    assert [a.verdict.code for a in actions if isinstance(a, Conclude)] == [66]


def test_heartbeats_keep_a_quiet_job_alive():
    job = running(3)
    job.pass_time(3600)
    assert not job.verdicts


def test_the_clock_of_another_host_is_never_compared():
    """Ages count, not times: a host reports how long ago, by its own clock."""
    job = running(3)
    early = Failure("exit", "algo-2", 7, "first", rank=2, age_s=0.4)
    late = Failure("exit", "algo-3", 8, "second", rank=4, age_s=0.0)
    job.send(job.hub.fail(0.5, "algo-3", late))
    job.send(job.hub.fail(0.7, "algo-2", early))
    job.now = 0.7
    job.pass_time(2)
    assert job.verdicts["algo-1"].failure.message == "first"


def test_a_stop_reaches_every_host_and_ends_with_0():
    job = running(3)
    job.act("algo-2", job.members["algo-2"].stop_asked(job.now, "SIGTERM on algo-2"))
    job.settle()
    assert all(signals == [15] for signals in job.signals.values())
    for host in job.hosts:
        finish(job, host, code=-15)
    job.settle()
    assert {(v.kind, v.code) for v in job.verdicts.values()} == {("stopped", 0)}
    assert {v.why for v in job.verdicts.values()} == {"SIGTERM on algo-2"}


def test_a_peer_that_a_stop_has_ended_is_no_failure():
    """The stopped host's ranks may vanish before the stop has reached the others."""
    job = running(2)
    job.act("algo-2", job.members["algo-2"].stop_asked(job.now, "SIGTERM on algo-2"))
    raised = Raised(0, 1, job.now, "RuntimeError", "Connection closed by peer", "")
    job.act("algo-1", job.members["algo-1"].rank_raised(job.now, 0, raised, is_rank=True))
    while job.to_hub["algo-2"]:  # the stop is heard first
        job.hear("algo-2", job.to_hub["algo-2"].pop(0))
    job.settle()
    for host in job.hosts:
        finish(job, host, code=1)
    job.settle()
    job.pass_time(20)
    assert {(v.kind, v.code) for v in job.verdicts.values()} == {("stopped", 0)}


def test_an_old_exception_that_a_rank_survived_is_not_blamed():
    job = running(2)
    job.members["algo-2"].rank_raised(job.now, 0, Raised(2, 999, job.now, "ImportError", "old", ""), is_rank=False)
    job.pass_time(60)
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 2, "the real end"))
    job.settle()
    job.pass_time(2)
    assert job.verdicts["algo-1"].failure.message == "the real end"


def test_a_host_that_comes_after_a_verdict_at_the_gate_hears_it():
    job = Job(3)
    job.join("algo-1", image="aaa")
    job.join("algo-2", image="bbb")
    job.settle()
    assert not job.hub.finished
    job.pass_time(3)
    job.join("algo-3", image="aaa")
    job.settle()
    assert job.verdicts["algo-3"] == job.verdicts["algo-1"]
    assert job.hub.finished


def test_what_outlasts_the_grace_is_killed():
    job = running(2)
    job.act("algo-1", job.members["algo-1"].stop_asked(job.now, "SIGTERM"))
    job.settle()
    job.pass_time(LIMITS.grace_s + 1)
    assert all(signals == [15, 9] for signals in job.signals.values())


def test_a_second_request_at_a_terminal_ends_the_grace():
    job = running(2)
    member = job.members["algo-1"]
    assert member.hurry(job.now) == []  # nothing to hurry before the first
    job.act("algo-1", member.stop_asked(job.now, "SIGINT"))
    job.act("algo-1", member.hurry(job.now + 1))
    assert job.signals["algo-1"] == [15, 9]
    assert member.hurry(job.now + 1) == []


def test_the_gate_says_who_came_with_another_token():
    job = Job(3)
    job.join("algo-1")
    job.hub.unproven("algo-2")
    job.hub.unproven("algo-9")
    job.pass_time(LIMITS.gate_s + 0.1)
    message = job.verdicts["algo-1"].failure.message
    assert "missing after 600 s: algo-2, algo-3 (algo-2 came with another token" in message
    assert "algo-9" not in message


def test_an_exception_below_a_rank_counts_only_if_the_rank_fails():
    job = running(2)
    raised = Raised(2, 999, job.now, "ValueError", "in a child", "Traceback")
    assert job.members["algo-2"].rank_raised(job.now, 0, raised, is_rank=False) == []
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 3))
    job.settle()
    job.pass_time(2)
    assert "ValueError: in a child" in job.verdicts["algo-1"].failure.headline()
    assert job.verdicts["algo-1"].code == 3


@settings(max_examples=300, deadline=None)
@example(count=2, seed=1, events=[("fail", 0, 0.0), ("stop", 1, 0.0)])  # the stop overtakes the failure
@given(
    count=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    events=st.lists(
        st.tuples(
            st.sampled_from(["done", "fail", "raise", "kill", "stop", "wait", "deliver"]),
            st.integers(0, 3),
            st.sampled_from([0.0, 0.1, 0.9, 1.1, 5.0]),
        ),
        max_size=12,
    ),
)
def test_whatever_happens_every_living_host_gets_one_and_the_same_verdict(count, seed, events):
    job = running(count, seed)
    finished: set[str] = set()
    for kind, index, seconds in events:
        host = job.hosts[index % count]
        if host in job.dead:
            continue
        match kind:
            case "done":
                finished.add(host)
                finish(job, host)
            case "fail":
                job.act(host, job.members[host].rank_exited(job.now, 0, 3))
            case "kill":
                job.kill(host)
            case "stop":
                job.act(host, job.members[host].stop_asked(job.now, f"SIGTERM on {host}"))
            case "wait":
                job.pass_time(seconds)
            case "deliver":
                job.step()
        if "algo-1" in job.dead:
            break
    for host in job.hosts:  # whoever still runs, ends well
        if host not in job.dead and host not in finished:
            finish(job, host)
    job.settle()
    job.pass_time(LIMITS.gate_s + LIMITS.grace_s)
    living = [host for host in job.hosts if host not in job.dead]
    assert set(living) <= set(job.verdicts)
    verdicts = {job.verdicts[host] for host in living}
    if "algo-1" not in job.dead:
        assert len(verdicts) <= 1
        assert job.hub.finished
    for verdict in verdicts:
        assert (verdict.code == 0) == (verdict.failure is None)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b'{"type": 3}', b"\xff", b"x" * 70_000, b"[" * 60_000],
)
def test_lines_that_are_no_messages_are_refused(line):
    with pytest.raises(ValueError, match=r"."):
        messages.decode(line)


@given(
    st.dictionaries(
        st.text(max_size=10), st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
    )
)
def test_messages_with_wrong_fields_bring_a_value_error_only(fields):
    for parse in (
        messages.parse_hello,
        messages.parse_ready,
        messages.parse_go,
        messages.parse_failure,
        messages.parse_verdict,
    ):
        with pytest.raises(ValueError, match=r"."):  # all of them need fields that none of these has
            parse({"type": "x", **fields})


def test_a_long_traceback_still_fits_a_message():
    failure = Failure("exception", "algo-1", 1, "E" * 70_000, traceback="x\n" * 60_000)
    line = messages.encode(messages.fail(failure))
    assert len(line) <= messages.LONGEST
    assert messages.parse_failure(messages.decode(line.rstrip(b"\n"))).traceback.endswith("x\n")
    line = messages.encode(messages.end(Verdict("failed", 1, failure)))
    assert len(line) <= messages.LONGEST


@pytest.mark.parametrize("started", [False, True])
def test_a_host_that_leaves_without_a_verdict_ends_the_job(started):
    """It no longer heard the hub, which heard it all the time: it is gone, and its ranks will never be done."""
    hub = Hub(0.0, ("algo-1", "algo-2"), Limits())
    for host in ("algo-1", "algo-2"):
        hub.hello(0.0, hello(host))
        if started:
            hub.ready(0.0, host, ready(host))
    hub.bye(1.0, "algo-2")
    hub.lost(1.0, "algo-2", "host lost: connection closed")
    sends = hub.tick(1.0 + Limits().blame_s)
    assert hub.verdict is not None
    assert hub.verdict.failure == Failure("lost", "algo-2", 66, "host lost: it left before the end")
    assert [host for host, message in sends if message["type"] == "end"] == ["algo-1"]


def test_texts_that_are_too_long_are_cut_until_a_message_fits():
    """A configuration error may show a whole hyperparameter; the others must hear of it all the same."""
    error = "hyperparameter algorun_args: " + "\U0001f600" * 90_000
    line = messages.encode(Hello("algo-2", {}, error).message("mac"))
    assert len(line) <= messages.LONGEST
    assert messages.parse_hello(messages.decode(line)).error == error[: messages.LONGEST_ERROR]
    long = "\U0001f600" * 20_000
    strange = Failure(kind=long, host=long, code=1, message=long, traceback=long, hint="h" * 60_000)
    assert len(messages.encode(messages.fail(strange))) <= messages.LONGEST


@pytest.mark.parametrize("code", [0, -9, 256])
def test_a_failure_cannot_end_a_job_with_success(code):
    message = messages.decode(messages.encode(messages.fail(Failure("exit", "algo-2", code, ""))))
    with pytest.raises(ValueError, match="code"):
        messages.parse_failure(message)


@pytest.mark.parametrize(("slots", "port"), [(0, 0), (-1, 0), (10**9, 0), (1, -1), (1, 65536)])
def test_slots_that_no_host_can_plan_are_no_message(slots, port):
    message = messages.decode(messages.encode(Ready(slots, {}, "h", port).message()))
    with pytest.raises(ValueError, match="slots|port"):
        messages.parse_ready(message)


def test_a_proof_depends_on_token_nonce_and_host():
    proof = messages.mac("token", "nonce", "algo-1")
    assert messages.same(proof, messages.mac("token", "nonce", "algo-1"))
    for other in (("x", "nonce", "algo-1"), ("token", "x", "algo-1"), ("token", "nonce", "algo-2")):
        assert not messages.same(proof, messages.mac(*other))


def test_ports_are_free_and_out_of_the_way_of_outgoing_connections():
    import socket

    from launcher.control import addresses

    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for address in ("127.0.0.1", "::1"):
        ports = addresses.free_ports(address, 3)
        assert len(set(ports)) == 3
        assert all(1024 < port < max(first, 29400) for port in ports)
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))  # another address of this host: still in the way of a listener on all of them
        assert not addresses._is_free(socket.AF_INET, taken.getsockname()[1])


def test_a_kernel_without_room_below_its_own_range_still_gives_ports(monkeypatch):
    from launcher.control import addresses

    monkeypatch.setattr(addresses, "_first_ephemeral_port", lambda: 1024)
    assert len(set(addresses.free_ports("127.0.0.1", 2))) == 2


def test_a_connection_that_closes_still_writes_but_hears_nothing_more():
    import socket

    from launcher.control.connection import Connection
    from launcher.loop import Loop

    loop, heard = Loop(), []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        near = socket.create_connection(listener.getsockname(), timeout=10)
        far, _ = listener.accept()
    with near:

        def hear(line: bytes) -> None:
            heard.append(line)
            for _ in range(100):  # more than the kernel takes, so that it is still open after `close`
                connection.send({"type": "stop", "why": "x" * 30_000})
            connection.close()

        connection = Connection(loop, far, hear, heard.append)
        near.sendall(b"one\ntwo\n")
        while not heard:
            loop.post(loop.stop)
            loop.run()
        assert heard == [b"one"]
        connection.flush(0.0)
    loop.close()
