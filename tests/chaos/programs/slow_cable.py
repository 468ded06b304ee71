"""`slow_cable.py ONE OTHER SECONDS`: joins two interfaces by a cable on which every frame takes so long, each way.

For kernels without netem (tc-netem(8)). The interfaces' other ends must not offload checksums (no_offload.py).
"""

import heapq
import itertools
import select
import socket
import sys
import time

ETH_P_ALL, PACKET_OUTGOING, LONGEST = 0x0003, 4, 65536


def main():
    delay = float(sys.argv[3])
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
            if kind != PACKET_OUTGOING:
                heapq.heappush(under_way, (time.monotonic() + delay, next(order), other[end], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(under_way)
            end.send(frame)


main()
