"""Mutations of tar files, whose headers keep their checksums. Deterministic by `random`."""

from __future__ import annotations

from random import Random

from .mutations import LONGEST, raw

BLOCK = 512  # bytes

# Fields of a tar header: offset, length, and values that are worth a try.
FIELDS: dict[tuple[int, int], tuple[bytes, ...]] = {
    (0, 100): (
        b"..",
        b"../x",
        b"/tmp/x",
        b"a/../../x",
        b".",
        b"",
        b"a",
        b"l/x",
        b"\xff",
        b"a//b",
        b"a/.",
        b"./",
        b"x" * 100,
    ),
    (100, 8): (b"0000755\0", b"7777777\0", b"\x80" + b"\xff" * 7, b"", b"-000001\0"),
    (124, 12): (
        b"0" * 11 + b"\0",
        b"7" * 11 + b"\0",
        b"\x80" + b"\xff" * 11,
        b"\xff" * 12,
        b"-" + b"1" * 11,
        b"00000001000\0",
    ),
    (136, 12): (b"7" * 12, b"\xff" * 12, b""),
    (156, 1): tuple(bytes([kind]) for kind in b"\x0001234567LKxgXSDMNVA"),
    (157, 100): (b"..", b"../x", b"/", b"a", b".", b"l", b"", b"a/../..", b"x" * 100),
    (257, 8): (b"ustar\x0000", b"ustar  \0", b"\0" * 8, b"xxxxxxxx"),
    (345, 155): (b"..", b"/", b"a", b"x" * 155),
    (386, 107): (b"\xff" * 107, b"0" * 24, b"7" * 107),  # GNU's map of holes
}
PAX = (
    b"30 mtime=1\n", b"0 a=b\n", b"11 path=../x\n", b"12 path=/tmp/x\n", b"20 linkpath=../../x\n", b"16 size=99999999\n",
    b"9" * 5000 + b" a=b\n", b"21 hdrcharset=BINARY\n", b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n",
    b"25 GNU.sparse.map=0,1,5,2\n", b"30 GNU.sparse.size=99999999999\n", b"19 size=1e999999999\n", b"-5 a=b\n", b"1" * 2000,
)  # fmt: skip


def header_sum(block: bytes) -> bytes:
    total = sum(block) - sum(block[148:156]) + 8 * 32
    return block[:148] + b"%06o\0 " % total + block[156:]


def as_tar(data: bytes, random: Random) -> bytes:
    """A plain tar file: a header's field with the right checksum, a header more or less, an extended header before it."""
    blocks = [data[at : at + BLOCK].ljust(BLOCK, b"\0") for at in range(0, len(data), BLOCK)] or [b"\0" * BLOCK]
    heads = [at for at, block in enumerate(blocks) if block[257:262] == b"ustar"] or [0]
    at = random.choice(heads)
    match random.randrange(8):
        case 0:
            blocks.insert(random.choice(heads), blocks[at])
        case 1:
            del blocks[random.randrange(len(blocks))]
        case 2:
            body = b"".join(random.choice(PAX) for _ in range(random.choice((1, 1, 2, 3))))
            size = -(-len(body) // BLOCK) * BLOCK
            head = bytearray(blocks[at])
            head[156:157] = random.choice((b"x", b"g", b"L", b"K", b"X"))
            head[124:136] = b"%011o\0" % len(body)
            blocks[at:at] = [header_sum(bytes(head)), body.ljust(size, b"\0")]
        case 3:
            return raw(data, random)[:LONGEST]
        case 4:  # the same header again and again
            blocks[at:at] = [blocks[at]] * random.choice((2, 30))
        case _:
            offset, length = random.choice(list(FIELDS))
            value = random.choice(FIELDS[offset, length]) if random.random() < 0.8 else random.randbytes(length)
            head = bytearray(blocks[at])
            head[offset : offset + length] = value[:length].ljust(length, b"\0")
            blocks[at] = header_sum(bytes(head))
    return b"".join(blocks)[: 4 * LONGEST]
