"""Ray: an installation, and what one host gives to the cluster. Pure.

Ray comes with the user's requirements.txt; the image has none.
"""

from __future__ import annotations

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

MIB = 1024**2
WANTED = "Ray 2"
INSTALL = "add ray to requirements.txt beside the program, or install it in the image"
LEAST_STORE = 75 * MIB  # bytes; Ray refuses a smaller object store
SHARE_OF_MEMORY = 0.3  # of the host's memory for the object store, Ray's own default
SHARE_OF_SHM = 0.8  # of what is free in /dev/shm: NCCL and DataLoader workers put buffers there too
SLOW_STORE = 256 * MIB  # bytes, where /dev/shm is too small: Ray then takes /tmp
MOST_STORE = 200 * 10**9  # bytes, Ray's own default
LOOPBACK, OWN_LOOPBACK = "127.0.0.1", "127.0.0.2"


@dataclass(frozen=True, slots=True)
class Ray:
    """Ray on one host."""

    command: str  # path of its program `ray`
    version: str  # such as 2.60.0; "" if unknown
    has_client_server: bool  # grpcio is installed: the head then serves Ray Client, on a port that cannot be closed

    def __str__(self) -> str:
        return f"Ray {self.version or 'of an unknown version'}: {self.command}"


@dataclass(frozen=True, slots=True)
class NodeResources:
    """What one host gives to Ray's scheduler."""

    cpus: int
    gpus: int
    memory_bytes: int
    store_bytes: int  # object store, in /dev/shm


def usable(found: Ray | None) -> Ray:
    """`found`, if the engine can use it. Raises UserError otherwise."""
    if found is None:
        raise UserError(
            "engine ray", "Ray is neither beside the Python interpreter nor on PATH", allowed=WANTED, fix=INSTALL
        )
    return found


def node_address(address: str) -> str:
    """The address of a host as Ray can use it. Ray 2.60 replaces 127.0.0.1 by the address of an interface."""
    return OWN_LOOPBACK if address == LOOPBACK else address


def object_store(memory_bytes: int, shm_bytes: int, asked: int | None, setting: str) -> int:
    """The bytes of the object store on a host with so much memory and so much room in /dev/shm.

    `asked`: what the user asks for with `setting`. Raises UserError if /dev/shm is too small for it. Without that, Ray puts a
    store for which /dev/shm is too small into /tmp.
    """
    if asked is not None:
        if asked > shm_bytes:
            raise UserError(
                setting, f"{_mib(asked)} for Ray's object store is more than the {_mib(shm_bytes)} free in /dev/shm",
                allowed=f"{_mib(LEAST_STORE)} to {_mib(shm_bytes)}", fix="a smaller value, or docker run --shm-size",
            )  # fmt: skip
        return asked
    most = memory_bytes * SHARE_OF_MEMORY
    in_shm = int(min(most, shm_bytes * SHARE_OF_SHM, MOST_STORE))
    # Docker gives a container 64 MiB of /dev/shm, and the SageMaker SDKs' local modes leave it at that.
    return in_shm if in_shm >= LEAST_STORE else max(LEAST_STORE, int(min(most, SLOW_STORE)))


def _mib(count: int) -> str:
    return f"{count // MIB} MiB"
