"""The seal of a connection: only the other side's next line opens."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.control.wire.seal import HEX, LENGTH, Seal, body, is_nonce, same
from algorun.network.nonces import fresh

TOKEN, NONCE, CHALLENGE, HOST = "token", "0" * HEX, "1" * HEX, "algo-2"
TEXTS = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20)


def sides(token: str = TOKEN, nonce: str = NONCE, challenge: str = CHALLENGE, host: str = HOST) -> tuple[Seal, Seal]:
    """The hub's and the host's seal of one connection."""
    return tuple(Seal(token, nonce, challenge, host, hub=hub) for hub in (True, False))  # type: ignore[return-value]


def opens(seal: Seal, line: bytes) -> bool:
    try:
        seal.open(line)
    except ValueError:
        return False
    return True


@given(st.lists(st.tuples(st.booleans(), TEXTS), max_size=20))
def test_what_one_side_seals_the_other_one_opens_in_order(said):
    hub, host = sides()
    for of_hub, text in said:
        sender, receiver = (hub, host) if of_hub else (host, hub)
        line = sender.close(text.encode() + b"\n")
        assert len(line) == LENGTH + len(text.encode()) + 1
        assert receiver.open(line[:-1]) == text.encode()
        assert receiver.proven


def test_a_mac_is_that_of_the_standard_library_and_of_the_documented_text():
    key = hmac.new(b"token", f"algorun control hub {NONCE} {CHALLENGE} {HOST}".encode(), hashlib.sha256).digest()
    for number, line in enumerate((b'{"a":1}\n', b"\n")):
        hub = sides()[0]
        for _ in range(number):
            hub.close(b"x\n")
        mac = hmac.new(key, number.to_bytes(8, "big") + line[:-1], hashlib.sha256).hexdigest()[:HEX]
        assert hub.close(line) == mac.encode() + b" " + line


@given(st.lists(TEXTS, min_size=1, max_size=6, unique=True), st.data())
def test_a_line_that_is_repeated_left_out_or_out_of_order_does_not_open(texts, data):
    hub, host = sides()
    lines = [hub.close(text.encode() + b"\n")[:-1] for text in texts]
    heard = data.draw(st.integers(0, len(lines) - 1))
    for line in lines[:heard]:
        host.open(line)
    for number, line in enumerate(lines):
        assert opens(host, line) == (number == heard), "only the next one"
        if number == heard:
            break
    assert not any(opens(host, line) for line in lines[: heard + 1])


@given(st.binary(min_size=1, max_size=60), st.integers(0), st.integers(1, 255))
def test_a_line_with_one_other_byte_does_not_open(text, at, change):
    hub, host = sides()
    line = bytearray(hub.close(text + b"\n")[:-1])
    line[at % len(line)] ^= change
    assert not opens(host, bytes(line))
    assert not host.proven


def test_a_line_is_of_no_use_on_another_connection_in_the_other_direction_or_for_another_host():
    hub, host = sides()
    line = hub.close(b"{}\n")[:-1]
    assert not opens(hub, line), "its own line, reflected"
    assert not opens(sides()[0], line), "to a hub"
    for other in ({"token": "x"}, {"nonce": fresh()}, {"challenge": fresh()}, {"host": "algo-3"}):
        assert not opens(sides(**other)[1], line), other
    assert opens(host, line)


@pytest.mark.parametrize("line", [b"", b"{}", b'{"type":"go"}', b"0" * HEX, b"0" * LENGTH, b" " * 100, b"\xff" * 40])
def test_a_line_without_a_seal_does_not_open(line):
    _, host = sides()
    assert not opens(host, line)


def test_what_is_no_text_is_a_value_error():
    with pytest.raises(ValueError, match="surrogates"):
        sides(host="\ud800")
    assert sides(token="\udcff")[1].open(sides(token="\udcff")[0].close(b"a token of any bytes\n")[:-1])
    with pytest.raises(ValueError, match="no seal"):
        body(b"{}")


def test_nonces_are_new_and_known_by_their_form():
    assert len({fresh() for _ in range(100)}) == 100
    assert is_nonce(fresh())
    assert not any(map(is_nonce, ("", "0" * 31, "0" * 33, "g" * 32, " " * 32, "A" * 32)))
    assert same("a", b"a")
    assert not same("a", "b")
