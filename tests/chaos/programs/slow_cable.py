"""`slow_cable.py ONE OTHER SECONDS [LOST LATE]`: joins two interfaces by a cable on which every frame takes so long, each way.

Shares of the frames, from 0 to 1: LOST never arrive, LATE take four times as long, and others overtake them.

For kernels without netem (tc-netem(8)). The interfaces' other ends must not offload checksums (no_offload.py).
"""

import heapq
import itertools
import random
import select
import socket
import sys
import time

ETH_P_ALL, PACKET_OUTGOING, LONGEST = 0x0003, 4, 65536


def main():
    delay, lost, late = [*map(float, sys.argv[3:]), 0.0, 0.0][:3]
    random.seed(1)
    ends = []
    for name in sys.argv[1:3]:
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        end.bind((name, 0))
        ends.append(end)
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    under_way, order = [], itertools.count()
    print("joined", flush=True)
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for end in select.select(ends, [], [], wait)[0]:
            frame, (_, _, kind, *_) = end.recvfrom(LONGEST)
            if kind == PACKET_OUTGOING or random.random() < lost:
                continue
            due = time.monotonic() + delay * (4 if random.random() < late else 1)
            heapq.heappush(under_way, (due, next(order), other[end], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(under_way)
            end.send(frame)


main()
