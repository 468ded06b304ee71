"""`finished.json` beside the checkpoints: the checkpoint whose model is written as an artifact, and by which job.

A job that is killed between its last checkpoint and its artifact leaves no such file for that checkpoint: the same job
again writes the artifact. A job that finds the file has nothing left to do.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from algorun_train.common.files import write_json
from algorun_train.common.json_text import loads

from .shards import Save
from .state_file import FORMAT, Values

FILE = "finished.json"


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact. `job`: the job that wrote it; "" if it had no name. `options`: those that shape only the artifact."""

    job: str
    options: Values


def write(root: Path, save: Save, artifact: Artifact) -> None:
    """Says in the folder `root` that the model of the checkpoint `save` is written. Raises OSError."""
    write_json(root / FILE, {"format": FORMAT, **save._asdict(), **asdict(artifact)})


def read_artifact(root: Path, save: Save) -> Artifact | None:
    """The artifact of the checkpoint `save`, as the folder `root` tells; None without one, and for a damaged file."""
    try:
        found: Any = loads((root / FILE).read_text())  # Any: whatever the file holds
        if found["format"] != FORMAT or [found[name] for name in Save._fields] != list(save):
            return None
        return Artifact(str(found["job"]), dict(found["options"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
