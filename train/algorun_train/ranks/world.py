"""The numbers of this process among the ranks, read from torchrun's environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass

from algorun_train.common.errors import UserError

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class World:
    """The numbers that a launcher gives to each process: torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    distributed: bool = False
    """whether a launcher has set them; if not, there is one process and no process group"""


def read_world(environ: Mapping[str, str]) -> World:
    """The numbers of this process; rank 0 of 1 if neither RANK nor WORLD_SIZE is set.

    Raises:
        UserError: if only some of torchrun's variables are set, one is not a whole number, or they contradict each other.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return World()
    if missing := [name for name in VARIABLES if not environ.get(name)]:
        raise UserError(
            f"environment: {', '.join(missing)} not set beside RANK or WORLD_SIZE; "
            "fix: start through algorun or torchrun, or unset RANK and WORLD_SIZE for a single process"
        )
    numbers = {}
    for name in VARIABLES[:4]:
        if not (environ[name].isascii() and environ[name].isdigit() and len(environ[name]) < 10):
            raise UserError(
                f"environment: {name}={environ[name]!r}; allowed: a whole number; fix: start through algorun"
            )
        numbers[name] = int(environ[name])
    rank, local_rank, world_size, local_world_size = (numbers[name] for name in VARIABLES[:4])
    if not (rank < world_size and local_rank < local_world_size <= world_size):
        text = " ".join(f"{name}={value}" for name, value in numbers.items())
        raise UserError(f"environment: {text} contradict each other; fix: start through algorun or torchrun")
    return World(rank, world_size, local_rank, local_world_size, True)
