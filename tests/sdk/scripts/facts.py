"""What a process of the job saw, as a file in the output folder: it travels home in the client's output.tar.gz."""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn


def write(rank: int, **seen: object) -> None:
    """Writes output/data/<host>-<rank>.json, aside and renamed."""
    folder = Path(os.environ.get("SM_OUTPUT_DATA_DIR", "/opt/ml/output/data"))
    folder.mkdir(parents=True, exist_ok=True)
    host = os.environ.get("SM_CURRENT_HOST", "host")
    facts = {"rank": rank, "host": host, "argv": sys.argv[1:], **seen}
    path = folder / f"{host}-{rank}.json"
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(facts))
    aside.rename(path)


def save_model(**content: object) -> None:
    """The artifact, written by one rank."""
    folder = Path(os.environ.get("SM_MODEL_DIR", "/opt/ml/model"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_text(json.dumps(content))


def leave() -> NoReturn:
    """Ends a rank that has used Gloo. While the interpreter shuts down, a thread of Gloo can abort the process (SIGABRT,
    torch 2.10 to 2.13): rare, and no client and no launcher can prevent it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
