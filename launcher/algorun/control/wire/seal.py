"""The seal of a connection: it proves who has sent each line, and that none was changed, left out, repeated or reordered. Pure.

hub: nonce.  host: hello with a challenge, sealed.  From then on: sealed lines, both ways.

Both sides hold the job's token. A connection has two keys, one for each direction, made from the token, the hub's nonce, the
host's challenge and the host's name. So a line is of no use on another connection, in the other direction or a second time, and
the first line of the hub that opens proves that the hub holds the token now.

A sealed line is `MAC JSON`. The MAC is an HMAC-SHA256 over the line's number in its direction, from 0, and the JSON. It is cut
to 128 bits, which RFC 2104 (section 5) allows. The number is not sent: TCP keeps the order, and both sides count.
"""

from __future__ import annotations

from algorun.common.fast_hmac import Hmac, compare_digest

HEX = 32  # characters of a nonce, a challenge and a MAC: 128 bits
LENGTH = HEX + 1  # what a seal adds to a line


def is_nonce(text: str) -> bool:
    """True for a text that has the form of a nonce or challenge (network/nonces.py makes them)."""
    return len(text) == HEX and not text.strip("0123456789abcdef")


def same(one: str | bytes, other: str | bytes) -> bool:
    """Compares two secrets in constant time. Raises ValueError where a text cannot be encoded."""
    return compare_digest(*(each if isinstance(each, bytes) else each.encode() for each in (one, other)))


def is_sealed(line: bytes) -> bool:
    """True for a line that has the form of a sealed one, whoever has made it."""
    return line[HEX:LENGTH] == b" "


def body(line: bytes) -> bytes:
    """A sealed line's JSON, unproven. Raises ValueError where the line has no seal."""
    if not is_sealed(line):
        raise ValueError("no seal")
    return line[LENGTH:]


class Seal:
    """One side's seal of one connection. `hub`: it is the hub's side; `host` is on the other one, or this one.

    Raises ValueError where the host's name cannot be encoded.
    """

    def __init__(self, token: str, nonce: str, challenge: str, host: str, *, hub: bool) -> None:
        secret = Hmac(token.encode("utf-8", "surrogateescape"))
        of_hub, of_host = (
            Hmac(secret.digest(f"algorun control {side} {nonce} {challenge} {host}".encode()))
            for side in ("hub", "host")
        )
        self._key, self._peers_key = (of_hub, of_host) if hub else (of_host, of_hub)
        self._sent = self._opened = 0

    @property
    def proven(self) -> bool:
        """True once a line of the other side has opened: it holds the token."""
        return self._opened > 0

    def close(self, line: bytes) -> bytes:
        """The next line of this side, sealed. `line` ends with a newline."""
        mac = self._mac(self._key, self._sent, line[:-1])
        self._sent += 1
        return mac + b" " + line

    def open(self, line: bytes) -> bytes:
        """The JSON of the other side's next line. Raises ValueError where it is not that line."""
        inner = body(line)
        if not same(self._mac(self._peers_key, self._opened, inner), line[:HEX]):
            raise ValueError("a line that does not prove the job's token")
        self._opened += 1
        return inner

    def _mac(self, key: Hmac, number: int, inner: bytes) -> bytes:
        return key.digest(number.to_bytes(8, "big") + inner).hex()[:HEX].encode()
