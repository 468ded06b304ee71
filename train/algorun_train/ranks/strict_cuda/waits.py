"""Counts where the host would wait for a GPU: what, and at which line of the script. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from types import FrameType

SHOWN = 5
OWN = os.path.dirname(os.path.abspath(__file__))
INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), sysconfig.get_path("platlib")})
ELSEWHERE = "a library's thread"

Listener = Callable[[str, FrameType], None]


def line_of_script(frame: FrameType | None) -> str:
    """`file:line` of the innermost frame that is neither of an installed package nor of this device."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*INSTALLED, OWN, "<")):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ELSEWHERE


class Waits:
    """Each wait's (what, where), with how often it happened."""

    def __init__(self) -> None:
        self.counted: Counter[tuple[str, str]] = Counter()
        self.listener: Listener | None = None
        """called in the place of counting, with what and the innermost frame"""
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int64)(self._add)

    def connect(self, device: ctypes.CDLL) -> None:
        """From now on the device counts here. This object must live as long as the process."""
        device.strict_cuda_on_wait(self._callback)

    def add(self, what: str) -> None:
        """Counts a wait at the line of the script that called."""
        if self.listener:
            self.listener(what, sys._getframe(1))
        else:
            self.counted[what, line_of_script(sys._getframe(1))] += 1

    def _add(self, what: bytes, size: int) -> None:
        self.add(what.decode())

    def line(self) -> str:
        """All of them in one line: how many, and the places with the most."""
        total = sum(self.counted.values())
        most = [f"{what} at {where} ({count} times)" for (what, where), count in self.counted.most_common(SHOWN)]
        rest = f", and {len(self.counted) - SHOWN} more places" if len(self.counted) > SHOWN else ""
        return f"waits for the GPU: {total}" + (": " + ", ".join(most) + rest if most else "")


WAITS = Waits()
