"""Four ranks that leave torch's process group right after they have joined. The last one connects late in Gloo: peers that
have opened their connection to it are done, and it is not.
"""

import datetime
import os
import time

import torch.distributed as dist

from algorun_train.ranks import join
from algorun_train.ranks.world import read_world

LATE_S = 0.5
LIMIT = datetime.timedelta(seconds=30)


class LateStore(dist.Store):
    """A store that is slow to tell the last rank where the others listen."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self.store = store

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def wait(self, keys: list[str], *limit: datetime.timedelta) -> None:
        self.store.wait(keys, *limit)

    def add(self, key: str, number: int) -> int:
        return self.store.add(key, number)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)

    def delete_key(self, key: str) -> bool:
        return self.store.delete_key(key)

    def set_timeout(self, limit: datetime.timedelta) -> None:
        self.store.set_timeout(limit)

    def get(self, key: str) -> bytes:
        if rank == size - 1 and key.endswith("//cpu//0/0"):
            time.sleep(LATE_S)
        return self.store.get(key)


world = read_world(os.environ)
store, rank, size = next(dist.rendezvous("env://", timeout=LIMIT))
late_store = LateStore(store)  # torch keeps only the part of it that is C++
dist.rendezvous = lambda *_, **__: iter([(late_store, rank, size)])
with join.joined(world):
    pass
print("left", flush=True)
os._exit(0)  # the interpreter's end would give the others time
