"""EFA, AWS's fast network between hosts, and the plugin that NCCL needs to use it. `root` as in probe."""

from __future__ import annotations

import os
from collections.abc import Mapping

from algorun.common.fast_dataclasses import dataclass

from . import libraries
from .system_files import listing, read_text

DEVICES = "/sys/class/infiniband"
NODES = "/dev/infiniband"
AMAZON = (
    "0x1d0f"  # PCI vendor. Device names do not identify EFA: efa_0, rdmap79s0 on p5, beside other vendors' ibp* on p6
)
PLUGIN = "libnccl-net.so"
# Folders in which AWS's EFA installer puts aws-ofi-nccl, those of releases before 1.42 included.
PLACES = (
    "/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu", "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/aws-ofi-nccl/lib", "/opt/aws-ofi-nccl/lib",
)  # fmt: skip
FILES = (PLUGIN, "libnccl-net-ofi.so", "libnccl-net-aws-ofi.so")


@dataclass(frozen=True, slots=True)
class Plugin:
    """NCCL's network plugin on this host; each field is "" if there is none."""

    path: str = ""  # the file that NCCL will load
    elsewhere: str = ""  # a plugin in a folder that NCCL does not search
    asked: str = ""  # the value of NCCL_NET_PLUGIN

    @property
    def left_aside(self) -> str:
        """The plugin that NCCL loads only if NCCL_NET_PLUGIN names it; "" where it finds one, or somebody has set the variable."""
        return "" if self.path or self.asked else self.elsewhere


def devices(root: str = "") -> tuple[str, ...]:
    """The names of the EFA devices that programs here can open.

    A container sees all devices of its instance in /sys, but can open only those whose nodes it was given
    (`docker run --device /dev/infiniband/uverbs0`).
    """
    return tuple(name for name in _of_amazon(root) if any(_is_there(node, root) for node in _nodes(name, root)))


def missing_nodes(root: str = "") -> tuple[str, ...]:
    """The nodes, such as uverbs0, of EFA devices in /sys that /dev/infiniband lacks."""
    return tuple(node for name in _of_amazon(root) for node in _nodes(name, root) if not _is_there(node, root))


def _of_amazon(root: str) -> list[str]:
    folder = f"{root}{DEVICES}"
    return [name for name in listing(folder) if read_text(f"{folder}/{name}/device/vendor").lower() == AMAZON]


def _nodes(device: str, root: str) -> tuple[str, ...]:
    return listing(f"{root}{DEVICES}/{device}/device/infiniband_verbs")


def _is_there(node: str, root: str) -> bool:
    return os.path.exists(f"{root}{NODES}/{node}")


def plugin(environ: Mapping[str, str], root: str = "") -> Plugin:
    """NCCL's network plugin, found by the same rules as in NCCL (its src/plugin/plugin_open.cc)."""
    asked = environ.get("NCCL_NET_PLUGIN", "")
    for name in _names(asked):
        if path := libraries.find(name, environ, root):
            return Plugin(path, asked=asked)
    places = [f"{folder}/{name}" for name in FILES for folder in PLACES]
    return Plugin("", next((path for path in places if os.path.exists(f"{root}{path}")), ""), asked)


def _names(asked: str) -> list[str]:
    """The file names to try. NCCL_NET_PLUGIN is a list with commas; `ofi` stands for libnccl-net-ofi.so."""
    names = []
    for each in filter(None, (part.strip() for part in asked.split(","))):
        names.append(each)
        if "/" not in each and not (each.startswith("lib") and each.endswith(".so")):
            names.append(f"libnccl-net-{each}.so")
    return names or [PLUGIN]
