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
    return tuple(name for name in _of_amazon(root) if any(_is_there(node, root) for node in _nodes(name, root)))


def missing_nodes(root: str = "") -> tuple[str, ...]:
    """The nodes of EFA devices, such as uverbs0, that are not in /dev/infiniband."""
    return tuple(node for name in _of_amazon(root) for node in _nodes(name, root) if not _is_there(node, root))


def _of_amazon(root: str) -> list[str]:
    folder = f"{root}{DEVICES}"
    return [name for name in listing(folder) if read(f"{folder}/{name}/device/vendor").lower() == AMAZON]


def _nodes(device: str, root: str) -> tuple[str, ...]:
    return listing(f"{root}{DEVICES}/{device}/device/infiniband_verbs")


def _is_there(node: str, root: str) -> bool:
    return os.path.exists(f"{root}{NODES}/{node}")


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
