"""Fuzzes one reader in this process, guided by coverage: `python -m tests.fuzz.child READER FOLDER [libFuzzer's options]`.

Faults are kept as files in FOLDER/faults, one for each kind of error and place, and the run goes on.
"""

from __future__ import annotations

import hashlib
import resource
import sys
import traceback
import warnings
from pathlib import Path
from random import Random

import atheris

OURS = ["algorun", "algorun_train"]
PARSERS = ["tarfile", "tomllib", "shlex", "argparse", "ast", "zipfile", "configparser"]
MOST_MEMORY = 6 << 30  # bytes of address space: an allocation that follows a number of the input's fails
MOST_FILE = 256 << 20  # bytes of one file


def place(error: BaseException) -> str:
    """Kind and innermost line of ours: what tells two faults apart."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/algorun/" in frame.filename or "/algorun_train/" in frame.filename]
    frame = (ours or frames)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.name}:{frame.lineno}"


def main() -> None:
    name, folder, *options = sys.argv[1:]
    with atheris.instrument_imports(include=[*OURS, *PARSERS]):
        from .catalogue import load

        reader = load(name)
    corpus, faults = Path(folder, "corpus"), Path(folder, "faults")
    for path in (corpus, faults):
        path.mkdir(parents=True, exist_ok=True)
    for data in reader.start():
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    seen: set[str] = set()

    def one(data: bytes) -> None:
        try:
            reader.read(data)
        except Exception as error:
            where = place(error)
            if where not in seen:
                seen.add(where)
                name = hashlib.sha256(where.encode()).hexdigest()[:12]
                (faults / name).write_bytes(data)
                text = "".join(traceback.format_exception(error))
                (faults / f"{name}.txt").write_text(f"{where}\n{text[-4000:]}", errors="backslashreplace")

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.3:
            return atheris.Mutate(data, most)
        return reader.mutate(data, random)[:most]

    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE, MOST_FILE))
    warnings.simplefilter("ignore")  # of the interpreter's parser about the words of an input
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
