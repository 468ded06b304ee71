"""The program `algorun`."""

import gc
import sys


def main() -> int:
    """Runs the command line (cli.py). Garbage is not collected until the start is over: nearly all objects of a start stay."""
    gc.disable()
    from .cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
