"""The program `algorun`."""

import gc
import os  # always loaded by now, like the two beside it: no file of the user's folder stands for it
import sys


def main() -> int:
    """Runs the command line (cli.py). Garbage is not collected until the start is over: nearly all objects of a start stay."""
    gc.disable()
    _standard_library_first()
    from .common import fast_pathlib

    fast_pathlib.load()
    from .cli import main as command_line

    return command_line()


def _standard_library_first() -> None:
    """Puts the current folder (`python -m algorun`) and PYTHONPATH behind the standard library and installed packages.

    They are the user's and may hold a json.py or a types.py. Ranks get PYTHONPATH as it is. Where this package itself
    comes from such a folder, installed packages stay behind it. launcher/algorun-rank.pth does the same earlier: the
    script that pip writes imports `re` before it calls `main`. Python with -I has no such folders. 10 us.
    """
    if sys.flags.isolated:
        return
    library = os.path.dirname(os.__file__)
    if library not in sys.path:  # in an archive: then no file stands before it
        return
    # An archive of the standard library, which need not exist, is named right before its folder.
    archive = f"{sys.platlibdir}/python{sys.version_info[0]}{sys.version_info[1]}.zip"
    at = sys.path.index(library)
    at -= at > 0 and sys.path[at - 1].endswith(archive)
    users, installed = sys.path[:at], sys.path[at:]
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if own in map(os.path.abspath, users):
        standard = [each for each in installed if each in (library, f"{library}/lib-dynload") or each.endswith(archive)]
        sys.path[:] = [*standard, *users, *(each for each in installed if each not in standard)]
    else:
        sys.path[:] = [*installed, *users]


if __name__ == "__main__":
    sys.exit(main())
