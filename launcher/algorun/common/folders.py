"""Folders of the launcher's own."""

from __future__ import annotations

import contextlib
import os


def remove_folder(folder: str) -> None:
    """Removes a folder and its contents, without following links. A file that cannot be removed stays, and no error is raised.

    shutil.rmtree does the same, but importing shutil takes 2 ms, and the end of every job would wait for it.
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
