"""Numbered lines as fast as they go, in pieces that end anywhere but at a line's end: `noisy.py LINES`."""

import os
import sys
import time

PIECE = 50_000  # bytes
rank, lines = os.environ["RANK"], int(sys.argv[1])
started = time.monotonic()
text = b""
for first in range(0, lines, 10_000):
    numbers = range(first, min(lines, first + 10_000))
    text += "".join([f"<{rank}:{number}:{'x' * (number % 7)}>\n" for number in numbers]).encode()
    while len(text) > PIECE:
        os.write(1, text[:PIECE])
        text = text[PIECE:]
os.write(1, text)
print(f"seconds {time.monotonic() - started}", file=sys.stderr)
