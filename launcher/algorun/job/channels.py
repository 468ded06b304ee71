"""The input channels of a job and their folders: a training job's channels, or the inputs of a Processing job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass

from .hyperparameter_groups import EXTRACT
from .jobfiles import read_object
from .paths import DEFAULT_BASE, Paths
from .settings import EXTRACT as SETTING

FILE = "File"  # the input mode that copies the data to the host's disk


@dataclass(frozen=True, slots=True)
class Channel:
    """One input. `mode`: File, FastFile or Pipe; a description without one means File."""

    name: str
    folder: str
    mode: str


def of_training(described: Mapping[str, Mapping[str, object]], paths: Paths) -> dict[str, Channel]:
    """The channels that inputdataconfig.json describes."""
    return {
        name: Channel(name, str(paths.channel(name)), str(value.get("TrainingInputMode") or FILE))
        for name, value in described.items()
    }


def of_processing(paths: Paths) -> dict[str, Channel]:
    """The inputs that processingjobconfig.json names (`ProcessingInputs`), without those that have no folder.

    Source: "How Amazon SageMaker configures the processing container" in AWS's developer guide. A path below /opt/ml lies
    below SAGEMAKER_BASE_DIR if that is set. Raises UserError.
    """
    where = str(paths.processing_config)
    inputs = read_object(paths.processing_config, missing_ok=True).get("ProcessingInputs") or []
    if not isinstance(inputs, list) or not all(isinstance(item, dict) for item in inputs):
        raise UserError(f"{where} ProcessingInputs", f"{inputs!r} is not a list of objects", allowed="[{..}, ..]")
    found = {}
    for item in inputs:
        name, source = item.get("InputName"), item.get("S3Input") or item.get("DatasetDefinition") or {}
        if not isinstance(name, str) or not name or "\0" in name:
            raise UserError(f"{where} ProcessingInputs", f"{name!r} is not an InputName", allowed="letters and digits")
        if not isinstance(source, dict):
            raise UserError(f"{where} {name}", f"{source!r} is not an object", allowed="a JSON object, {..}")
        folder = source.get("LocalPath")
        if folder is None:
            continue  # AppManaged: the program fetches the data itself
        if not isinstance(folder, str) or not folder.startswith("/") or "\0" in folder:
            raise UserError(f"{where} {name} LocalPath", f"{folder!r} is not an absolute path", allowed="/opt/ml/..")
        mode = source.get("S3InputMode") or source.get("InputMode") or FILE
        found[name] = Channel(name, placed(os.path.normpath(folder), paths.base), str(mode))
    return found


def placed(folder: str, base: Path) -> str:
    """The path on this host: one below /opt/ml lies below `base`, another stays as it is."""
    path = Path(folder)
    return str(base / path.relative_to(DEFAULT_BASE)) if path.is_relative_to(DEFAULT_BASE) else folder


def to_extract(
    asked: tuple[str, ...] | None, setting: tuple[str, ...], channels: Mapping[str, Channel]
) -> tuple[Channel, ...]:
    """The channels whose archives are unpacked, each once. `asked`: the hyperparameter, which overrides the setting.

    Raises UserError on a name that no channel has, and on a channel whose files are not on the host's disk.
    """
    where = SETTING.name if asked is None else f"hyperparameter {EXTRACT}"
    found = {}
    for name in setting if asked is None else asked:
        channel = channels.get(name)
        if channel is None:
            known = ", ".join(sorted(channels)) or "none; this job has no channels"
            raise UserError(where, f"the job has no channel {name!r}", allowed=known)
        if channel.mode != FILE:
            raise UserError(
                where,
                f"channel {name!r} has the input mode {channel.mode}, so its files are not on this host's disk",
                allowed=f"channels of mode {FILE}",
                fix=f"give {name!r} the input mode {FILE}, or do not extract it",
            )
        found[name] = channel
    return tuple(found.values())
