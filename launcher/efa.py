"""EFA, AWS's network for several hosts, and the plugin that NCCL needs to use it. `root` as in probe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from . import libraries
from .system_files import listing, read

DEVICES = "/sys/class/infiniband"
NODES = "/dev/infiniband"
AMAZON = "0x1d0f"  # PCI vendor. Names tell nothing: efa_0, rdmap79s0 on p5; p6 has others' ibp* as well
PLUGIN = "libnccl-net.so"
# Where AWS's installer, and releases before 1.42, put aws-ofi-nccl.
PLACES = (
    "/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu", "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/aws-ofi-nccl/lib", "/opt/aws-ofi-nccl/lib",
)  # fmt: skip
FILES = (PLUGIN, "libnccl-net-ofi.so", "libnccl-net-aws-ofi.so")


@dataclass(frozen=True, slots=True)
class Plugin:
    """`path` is what NCCL will load, "" for none; `elsewhere` a plugin that NCCL does not find. `wish`: NCCL_NET_PLUGIN."""

    path: str = ""
    elsewhere: str = ""
    wish: str = ""


def devices(root: str = "") -> tuple[str, ...]:
    """The EFA devices that programs here can open, known by their vendor.

    A container sees all of the host's devices in /sys, and can open those whose nodes it was given
    (`docker run --device /dev/infiniband/uverbs0`).
    """
    found = (name for name in listing(f"{root}{DEVICES}") if _can_be_opened(f"{DEVICES}/{name}/device", root))
    return tuple(name for name in found if read(f"{root}{DEVICES}/{name}/device/vendor").lower() == AMAZON)


def _can_be_opened(device: str, root: str) -> bool:
    nodes = listing(f"{root}{device}/infiniband_verbs")  # uverbs0
    return any(os.path.exists(f"{root}{NODES}/{node}") for node in nodes)


def plugin(environ: Mapping[str, str], root: str = "") -> Plugin:
    """NCCL's network plugin, looked for as NCCL does (its src/plugin/plugin_open.cc)."""
    wish = environ.get("NCCL_NET_PLUGIN", "")
    for name in _names(wish):
        if path := libraries.find(name, environ, root):
            return Plugin(path, wish=wish)
    places = [f"{folder}/{name}" for name in FILES for folder in PLACES]
    return Plugin("", next((path for path in places if os.path.exists(f"{root}{path}")), ""), wish)


def _names(wish: str) -> list[str]:
    """A plugin's name is a file, or what stands between libnccl-net- and .so; several are separated by commas."""
    names = []
    for each in filter(None, (part.strip() for part in wish.split(","))):
        names.append(each)
        if "/" not in each and not (each.startswith("lib") and each.endswith(".so")):
            names.append(f"libnccl-net-{each}.so")
    return names or [PLUGIN]
