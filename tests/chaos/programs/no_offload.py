"""`no_offload.py INTERFACE`: the kernel itself computes checksums and cuts segments (ETHTOOL_STXCSUM, _STSO, _SGSO)."""

import array
import fcntl
import socket
import struct
import sys

SIOCETHTOOL = 0x8946  # linux/sockios.h
COMMANDS = (0x17, 0x1F, 0x24)  # linux/ethtool.h

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    for command in COMMANDS:
        value = array.array("B", struct.pack("II", command, 0))
        request = struct.pack("16sP16x", sys.argv[1].encode(), value.buffer_info()[0])
        fcntl.ioctl(sock, SIOCETHTOOL, request)
print("done", flush=True)
