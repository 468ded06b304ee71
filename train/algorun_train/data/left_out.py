"""What the listing of a channel leaves out, and the one line of the log that counts and names it."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

# Folders and files that systems and programs leave beside data; in lower case. Names with a dot in front are hidden.
NEVER_DATA = frozenset(
    (
        "__macosx",  # macOS, in archives
        "lost+found",  # ext4: the root of a volume
        "found.000",  # Windows: chkdsk
        "$recycle.bin",
        "system volume information",
        "thumbs.db",
        "ehthumbs.db",
        "desktop.ini",
        "@eadir",  # Synology: thumbnails under the names of the images
        "@tmp",
        "#recycle",
        "#snapshot",
        "@recycle",  # QNAP
        "@recently-snapshot",
        "__pycache__",
    )
)
ABOVE = "link to a folder above it"
AGAIN = "link to what is read anyway"
DANGLING = "dangling link"
REPLACED = "member that a later one of its name replaces"
SPECIAL = "special file"
LONE_LABEL = ".cls without an image"
MANY = {
    ABOVE: "links to folders above them",
    AGAIN: "links to what is read anyway",
    DANGLING: "dangling links",
    REPLACED: "members that later ones of their names replace",
    SPECIAL: "special files",
}
NAMED = 8  # kinds that the line names
LONGEST = 12  # characters of a suffix


@dataclass(slots=True)
class LeftOut:
    """Counts what is left out. `counts` is by the first part of the path (the class folder, if there is one) and the kind;
    `examples` has the first path of each kind whose name does not say what it is."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, path: str, kind: str | None = None, count: int = 1) -> None:
        """Counts `path`, which is relative to the channel or the tar file. `kind` is by its name if it is not given."""
        if not count:
            return
        if kind in MANY:
            self.examples.setdefault(kind, path)
        self.counts[path.partition("/")[0], kind or kind_of(path.rpartition("/")[2])] += count

    def join(self, other: Self) -> None:
        self.counts.update(other.counts)
        self.examples = other.examples | self.examples

    def __bool__(self) -> bool:
        return bool(self.counts)

    def total(self) -> int:
        return self.counts.total()

    def named(self, tops: Iterable[str] | None = None) -> str:
        """Such as `10 .xcf, 2 in __MACOSX`; of the folders `tops` alone if they are given. Empty if there is nothing."""
        chosen = None if tops is None else set(tops)
        kinds: Counter[str] = Counter()
        for (top, kind), count in self.counts.items():
            if chosen is None or top in chosen:
                kinds[kind] += count
        ordered = sorted(kinds.items(), key=lambda each: (-each[1], each[0]))
        parts = []
        for kind, count in ordered[:NAMED]:
            example = f" ({self.examples[kind]})" if kind in self.examples and chosen is None else ""
            parts.append(f"{count} {MANY.get(kind, kind) if count > 1 else kind}{example}")
        if rest := sum(count for _, count in ordered[NAMED:]):
            parts.append(f"{rest} others")
        return printable(", ".join(parts))

    def line(self, channel: str) -> str | None:
        """The line for the log; None if nothing is left out."""
        total = self.total()
        return f"channel '{channel}': {total} file{'s' * (total > 1)} left out: {self.named()}" if total else None


def is_never_data(name: str) -> bool:
    """Whether a file or folder of this name is never part of a dataset."""
    return name.startswith(".") or name.lower() in NEVER_DATA


def kind_of(name: str) -> str:
    """The kind of a file that is left out, by its name."""
    if name.startswith("."):
        return "hidden"
    if name.lower() in NEVER_DATA:
        return name
    suffix = os.path.splitext(name)[1].lower()
    if not suffix:
        return "without a suffix"
    return suffix if suffix[1:].isalnum() and len(suffix) <= LONGEST else "of other names"


def printable(text: str) -> str:
    """`text` for a line of the log: what would break the line, or cannot be encoded, is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
