"""A process that decodes images into shared memory for a rank. `decoders` starts it; it imports no torch.

It ends when its standard input ends, so also when the rank is killed.
"""

import mmap
import os
import pickle
import signal
import sys
from typing import BinaryIO

import numpy as np

from algorun_train.common.errors import UserError

from .image_decoding import decode
from .listing import Listing


def main(memory: int, requests: BinaryIO, answers: BinaryIO) -> None:
    """Reads a listing and a side, then requests (first byte in `memory`, indices), pickled. Answers each with None, or the
    text of a UserError. `memory` is the descriptor of a file that the rank maps too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to all processes of a host; the rank decides when it stops
    listing, side = pickle.load(requests)
    assert isinstance(listing, Listing)
    size = side * side * 3
    view = mmap.mmap(-1, 1)
    while True:
        try:
            begin, indices = pickle.load(requests)
        except EOFError:
            return
        if (total := os.fstat(memory).st_size) != len(view):
            view = mmap.mmap(memory, total)
        pixels = np.frombuffer(view, np.uint8, len(indices) * size, begin).reshape(-1, side, side, 3)
        answer = None
        try:
            for row, index in enumerate(indices):
                pixels[row] = 0 if index < 0 else decode(listing, index, side)
        except UserError as error:
            answer = str(error)
        del pixels
        pickle.dump(answer, answers)
        answers.flush()


def run() -> None:
    """The program; its argument is the descriptor of the memory. What a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    main(int(sys.argv[1]), sys.stdin.buffer, answers)
