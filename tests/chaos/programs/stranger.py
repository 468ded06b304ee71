"""`stranger.py ADDRESS PORT`: comes to the hub in every wrong way; prints how many of its connections were closed, and when."""

import json
import select
import socket
import sys
import time

EACH = 10
LIMIT_S = 20.0
HELLO = {"type": "hello", "host": "algo-2", "digest": {}, "error": "", "mac": "0" * 64}
WORDS = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\xff" * 100_000,
    b'{"type":"end","verdict":{"kind":"ok","code":0,"failure":null,"why":""}}\n' * 3,
    b'{"type":"stop","why":"a stranger"}\n',
    json.dumps(HELLO).encode() + b"\n",
    json.dumps({**HELLO, "host": "algo-9"}).encode() + b"\n",
    b"[" * 50_000 + b"\n",
]

started = time.monotonic()
open_ones = []
for words in WORDS:
    for _ in range(EACH):
        sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)
        try:
            sock.sendall(words)
        except OSError:
            pass
        sock.setblocking(False)
        open_ones.append(sock)
total = len(open_ones)
while open_ones and time.monotonic() < started + LIMIT_S:
    for sock in select.select(open_ones, [], [], 0.2)[0]:
        try:
            if sock.recv(65536):
                continue
        except OSError:
            pass
        open_ones.remove(sock)
        sock.close()
print(json.dumps({"total": total, "open": len(open_ones), "seconds": time.monotonic() - started}), flush=True)
time.sleep(600)
