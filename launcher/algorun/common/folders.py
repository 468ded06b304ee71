"""Removes folders."""

from __future__ import annotations

import contextlib
import os


def remove_folder(folder: str) -> None:
    """Removes a folder of our own and all that is in it, as far as that is possible; links are not followed.

    As shutil.rmtree with ignore_errors=True. To import shutil takes 2 ms, for which the end of every job would wait.
    """
    for root, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = os.path.join(root, name)
            with contextlib.suppress(OSError):
                if name in folders and not os.path.islink(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)
