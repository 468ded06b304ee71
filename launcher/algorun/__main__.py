"""The program `algorun`."""

import gc
import sys


def main() -> int:
    """Runs the command line (cli.py), without collections until it turns them on: the start makes only what stays."""
    gc.disable()
    from .cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
