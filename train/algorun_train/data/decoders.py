"""Processes that decode images ahead of their use, into memory that they share with the rank.

Processes, not threads: so much of decoding a small image is Python that two threads reached 0.7 of the rate of two processes
(images of 96 x 72, Python 3.11, bench/loaders.py on a machine that was not quiet). They are new processes, not forks of
a rank that has threads and a GPU, and load no torch. The memory is a memfd: /dev/shm has only 64 MB in many containers.
"""

import contextlib
import mmap
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from algorun_train.common.errors import UserError

from .listing import Listing
from .sampler import Indices

PROGRAM = "import sys; sys.path[:] = {path!r}; from algorun_train.data.decode_worker import run; run()"
END_S = 5.0  # until a process that has nothing to read is killed


class Decoders:
    """`workers` processes that decode the images of `listing` as uint8 [side, side, 3], in up to `slots` batches at once.
    Index -1 stands for an image of zeros."""

    def __init__(self, listing: Listing, side: int, workers: int, slots: int) -> None:
        self._side, self._slots, self.capacity = side, slots, 0
        self._memory = os.memfd_create("algorun-images")
        self._view: mmap.mmap | None = None
        command = [sys.executable, "-I", "-c", PROGRAM.format(path=sys.path), str(self._memory)]
        # Isolated (-I): what a launcher puts on PYTHONPATH is for ranks. numpy would start a thread per CPU.
        environ = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[self._memory], env=environ
            )
            for _ in range(workers)
        ]
        self.close = weakref.finalize(self, _end, self._processes, self._memory)
        for worker in range(workers):
            self._send(worker, (listing, side))

    def grow(self, batch: int) -> None:
        """Makes room for batches of `batch` images. Call it while no batch is under way."""
        self.capacity = batch
        size = self._slots * batch * self._side * self._side * 3
        os.ftruncate(self._memory, size)
        self._view = mmap.mmap(self._memory, size)

    def start(self, slot: int, indices: Indices) -> None:
        """Starts to decode a batch of at most `capacity` images into slot number `slot`."""
        size = self._side * self._side * 3
        begin = slot * self.capacity * size
        for worker, part in enumerate(np.array_split(indices, len(self._processes))):
            self._send(worker, (begin, part.tolist()))
            begin += len(part) * size

    def finish(self, slot: int, count: int) -> np.ndarray:
        """The batch of `count` images that was started first: uint8 [count, side, side, 3], valid until its slot is used
        again. Raises UserError for a corrupt image."""
        errors = [self._receive(worker) for worker in range(len(self._processes))]
        for error in errors:
            if error is not None:
                raise UserError(error)
        assert self._view is not None
        size = self._side * self._side * 3
        flat = np.frombuffer(self._view, np.uint8, count * size, slot * self.capacity * size)
        return flat.reshape(count, self._side, self._side, 3)

    def _send(self, worker: int, value: object) -> None:
        stream = self._processes[worker].stdin
        assert stream is not None
        try:
            pickle.dump(value, stream)
            stream.flush()
        except BrokenPipeError:
            self._ended(worker)

    def _receive(self, worker: int) -> str | None:
        stream = self._processes[worker].stdout
        assert stream is not None
        try:
            answer: str | None = pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            self._ended(worker)
        return answer

    def _ended(self, worker: int) -> NoReturn:
        code = self._processes[worker].wait()
        raise RuntimeError(
            f"a process that decodes images ended with {code}; if it was killed, memory may be short"
        ) from None


def _end(processes: Sequence[subprocess.Popen[bytes]], memory: int) -> None:
    for process in processes:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
    for process in processes:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    os.close(memory)
