"""What the kernel has counted of a process so far: time on cores, bytes read and written, bytes received over TCP."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct

from algorun.common.fast_dataclasses import dataclass

from .system_files import read_text

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# Threads in which libraries spin while others are waited for, by the names that torch, NCCL, CUDA and UCX give them.
SPINNING = re.compile(
    r"NCCL|pt_nccl|pt_gloo|pt_tcpstore|cuda|ucx"
    # Threads of Ray and gRPC themselves, which wake up all the time. What a task computes, it computes in others.
    r"|(client|server)\.poll|default-executo|resolver-execut|event_engine|gcs_client_io|grpc|jemalloc_bg|nexting_thread"
    r"|task_event_|timer_manager|worker\.io",
    re.IGNORECASE,
)
GPU = "/dev/nvidia"  # how the names of GPUs' device files begin
SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class ProcessCounters:
    """As in ProcessLook (control/hang/standstill.py)."""

    born: int
    stopped: bool
    main_s: float
    others_s: float
    moved: int
    received: int
    on_gpu: bool


def count(pid: int, tcp: dict[int, int], root: str = "") -> ProcessCounters | None:
    """The counts of a process, None if it has ended. `tcp` is what `received_by_socket` returns."""
    folder = f"{root}/proc/{pid}"
    fields = read_text(f"{folder}/stat").rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    main_s, others_s = _threads(pid, folder, (int(fields[11]) + int(fields[12])) / TICKS)
    others_s += (int(fields[13]) + int(fields[14])) / TICKS  # of children that have ended
    descriptors = _descriptors(folder)
    sockets = (int(found[1]) for each in descriptors if (found := SOCKET.fullmatch(each)))
    return ProcessCounters(
        born=int(fields[19]),
        stopped=fields[0] in "Tt",
        main_s=main_s,
        others_s=others_s,
        moved=_moved(folder)
        + int(fields[9]) * PAGE,  # pages that it maps count in no other figure on some file systems
        received=sum(tcp.get(each, 0) for each in sockets),
        on_gpu=any(each.startswith(GPU) for each in descriptors),
    )


def _threads(pid: int, folder: str, cpu_s: float) -> tuple[float, float]:
    """The seconds of the main thread, and those of the others that do not spin; `cpu_s` are those of all, also of ended ones."""
    main_s, others_s = 0.0, cpu_s
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"{folder}/task"):
            worked, waited = _seconds(f"{folder}/task/{thread}")
            if thread == str(pid):
                main_s = worked + waited
                others_s -= worked
            elif SPINNING.match(read_text(f"{folder}/task/{thread}/comm")):
                others_s -= worked
            else:
                others_s += waited
    return main_s, max(0.0, others_s)


def _seconds(folder: str) -> tuple[float, float]:
    """A thread's seconds on a core, and of waiting for one: 0.0 where the kernel does not count the latter."""
    words = read_text(f"{folder}/schedstat").split()
    if len(words) >= 2 and words[0] != "0":
        return int(words[0]) / 1e9, int(words[1]) / 1e9
    fields = read_text(f"{folder}/stat").rpartition(")")[2].split()
    return ((int(fields[11]) + int(fields[12])) / TICKS if len(fields) > 12 else 0.0), 0.0


def _moved(folder: str) -> int:
    """Bytes through read and write, and to and from disks: what a program maps is in the latter only."""
    found = dict(re.findall(r"^(\w+): (\d+)$", read_text(f"{folder}/io"), re.MULTILINE))
    return sum(int(found.get(name, 0)) for name in ("rchar", "wchar", "read_bytes", "write_bytes"))


def _descriptors(folder: str) -> list[str]:
    """What the descriptors of a process are open to."""
    found = []
    with contextlib.suppress(OSError):
        for number in os.listdir(f"{folder}/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"{folder}/fd/{number}"))
    return found


# -- TCP -------------------------------------------------------------------------------------------------------------
# sock_diag(7): a dump of all TCP sockets of this network namespace, with tcp_info. No right is needed for it.

SOCK_DIAG, BY_FAMILY, DUMP, DONE, ERROR = 4, 20, 0x301, 3, 2
TCP_INFO = 2  # an attribute
HEAD = struct.Struct("=IHHII")  # struct nlmsghdr
REQUEST = struct.Struct("=BBBBI48x")  # struct inet_diag_req_v2: family, protocol, attributes, padding, states
MESSAGE_BYTES, INODE_AT = 72, 68  # struct inet_diag_msg, whose last field is the inode
RECEIVED_AT = 128  # tcpi_bytes_received in struct tcp_info, since Linux 4.1
ANSWER_S = 1.0


def received_by_socket() -> dict[int, int]:
    """The bytes that each TCP socket has received, by its inode; {} where this kernel or sandbox does not tell."""
    found: dict[int, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        with (
            contextlib.suppress(OSError, struct.error),
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as channel,
        ):
            channel.settimeout(ANSWER_S)
            request = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (TCP_INFO - 1), 0, 0xFFFFFFFF)
            channel.send(HEAD.pack(HEAD.size + len(request), BY_FAMILY, DUMP, 1, 0) + request)
            while read_dump(channel.recv(1 << 18), found):
                pass
    return found


def read_dump(data: bytes, found: dict[int, int]) -> bool:
    """Reads messages of a dump; False after its end."""
    at = 0
    while at + HEAD.size <= len(data):
        size, kind, _, _, _ = HEAD.unpack_from(data, at)
        if kind in (DONE, ERROR) or size < HEAD.size:
            return False
        if at + HEAD.size + MESSAGE_BYTES > len(data):
            return False
        (inode,) = struct.unpack_from("=I", data, at + HEAD.size + INODE_AT)
        found[inode] = _received(data[at + HEAD.size + MESSAGE_BYTES : at + size])
        at += -(-size // 4) * 4
    return bool(data)


def _received(attributes: bytes) -> int:
    at = 0
    while at + 4 <= len(attributes):
        size, kind = struct.unpack_from("=HH", attributes, at)
        if kind == TCP_INFO and size >= 4 + RECEIVED_AT + 8:
            return int(struct.unpack_from("=Q", attributes, at + 4 + RECEIVED_AT)[0])
        at += max(4, -(-size // 4) * 4)
    return 0
