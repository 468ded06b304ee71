"""Fuzzes all readers and writes the table of docs/fuzzing.md: `python -m tests.fuzz.campaign [--runs 100000] [READER ..]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from .catalogue import NAMES
from .reader import memory

INPUT_LIMIT_S = 30  # for one input, by the wall clock of a machine that others use too
MEMORY_MIB = 3072  # of the whole process; torch alone takes 500
LONGEST = 65536  # bytes of one input
READER_LIMIT_S = 3600.0
STATUS = re.compile(r"#(\d+)\s+(?:DONE|NEW|REDUCE|pulse|INITED).*?cov: (\d+)")
BEGIN, END = "<!-- table: make test-all PART=fuzz -->", "<!-- end of the table -->"


@dataclass(frozen=True, slots=True)
class Row:
    """One reader: inputs, seconds, edges covered (at the start and at the end), and faults."""

    reader: str
    inputs: int
    seconds: float
    edges: int
    seeds_edges: int
    faults: int
    day: str

    def __str__(self) -> str:
        edges = f"{self.seeds_edges:,} -> {self.edges:,}"
        return f"| {self.reader} | {self.inputs:,} | {self.seconds:.0f} | {edges} | {self.faults} | {self.day} |"


def fuzz(reader: str, runs: int, folder: Path, seed: int) -> Row:
    """One reader in a process of its own, whose end (too slow, too large, a crash) counts as a fault too."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = [f"-runs={runs}", f"-seed={seed}", f"-timeout={INPUT_LIMIT_S}", f"-rss_limit_mb={MEMORY_MIB}"]
    options += [f"-max_len={LONGEST}", f"-artifact_prefix={folder}/", "-len_control=0", "-handle_xfsz=0"]
    argv = [sys.executable, "-m", "tests.fuzz.child", reader, str(folder), *options]
    began = time.monotonic()
    # libFuzzer leaves without the interpreter's own end: what the reader wrote goes with this folder.
    with (
        open(folder / "log", "wb") as log,
        tempfile.TemporaryDirectory(prefix="algorun-fuzz-", dir=memory()) as scratch,
    ):
        environ = {**os.environ, "TMPDIR": scratch, "OMP_NUM_THREADS": "1"}
        code = subprocess.run(
            argv, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=READER_LIMIT_S, check=False
        ).returncode
    seconds = time.monotonic() - began
    found = [
        (int(inputs), int(edges)) for inputs, edges in STATUS.findall((folder / "log").read_text(errors="replace"))
    ]
    faults = len(list((folder / "faults").glob("*.txt"))) + (code != 0)
    inputs, edges = found[-1] if found else (0, 0)
    row = Row(reader, inputs, seconds, edges, found[0][1] if found else 0, faults, date.today().isoformat())
    (folder / "row.json").write_text(json.dumps(asdict(row)))
    return row


def table(rows: list[Row], seed: int, before: str) -> str:
    """The table of all readers: these rows, and those of the text before for readers that have none here."""
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in before.splitlines() if line.startswith("| ")}
    lines |= {row.reader: str(row) for row in rows}
    about = (
        f"Python {platform.python_version()}, atheris {version('atheris')}, seed {seed}. "
        "Seconds are those of the reader's whole process, two at a time on two shared cores."
    )
    head = (
        "| reader | inputs | seconds | edges covered: honest inputs -> end | faults | date |\n|---|---|---|---|---|---|"
    )
    return "\n".join([BEGIN, about, "", head, *(lines[name] for name in NAMES if name in lines), END])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(NAMES))
    parser.add_argument("--runs", type=int, default=100_000, help="inputs for each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="readers at a time")
    parser.add_argument("--folder", type=Path, default=Path(".build/fuzz"), help="corpora, faults and logs")
    parser.add_argument("--docs", type=Path, help="the page whose table is written anew")
    options = parser.parse_args()
    names = options.readers or NAMES

    def one(name: str) -> Row:
        row = fuzz(name, options.runs, options.folder / name, options.seed)
        print(row, flush=True)
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(one, names))
    if options.docs:
        head, _, rest = options.docs.read_text(encoding="utf-8").partition(BEGIN)
        old, _, tail = rest.partition(END)
        options.docs.write_text(head + table(rows, options.seed, old) + tail, encoding="utf-8")
    for row in rows:
        if row.faults:
            print(f"{row.reader}: {row.faults} faults, see {options.folder / row.reader}", file=sys.stderr)
    return 1 if any(row.faults or row.inputs < options.runs for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
