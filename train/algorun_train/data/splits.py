"""Refuses a channel that holds several splits of a data set: a model would train on its own test data. Pure."""

import re
from collections.abc import Sequence

from algorun_train.common.errors import UserError

from .left_out import printable

# The words by which Hugging Face's datasets knows a split, and what may stand around one in a file's name (data_files.py there).
WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
OF_WORD = {word: split for split, words in WORDS.items() for word in words}
BETWEEN = re.compile(r"[-._ 0-9]+")
ABOUT = ("readme", "license", "licence", "notice", "citation")  # files beside the data


def refuse_splits(where: str, names: Sequence[str]) -> None:
    """Raises UserError, which begins with `where`, if each file's name tells its split, and the files are of several splits.
    `names` are paths below the channel's folder."""
    first: dict[str, str] = {}
    for name in names:
        if name.rpartition("/")[2].lower().startswith(ABOUT):
            continue
        split = _split(name)
        if split is None:  # names of documents may have such a word by chance
            return
        first.setdefault(split, name)
    if len(first) > 1:
        held = " and ".join(f"{split} ({printable(name)})" for split, name in first.items())
        raise UserError(
            f"{where} holds the splits {held}, and a channel is one split; allowed: files of one split; "
            "fix: move each split into a folder of its own, and give it as a channel: --train FOLDER --validation FOLDER"
        )


def _split(name: str) -> str | None:
    """The split that a file's name tells, or the innermost of its folders that tells one; None: no split, or several."""
    *folders, file = name.lower().split("/")
    found = {OF_WORD[word] for word in BETWEEN.split(file) if word in OF_WORD}
    for folder in reversed(folders):
        found = found or {OF_WORD[word] for word in BETWEEN.split(folder) if word in OF_WORD}
    return found.pop() if len(found) == 1 else None
