"""A line of a .gitignore as git matches it: dir.c and wildmatch.c of git 2.43 (read, not copied). Pure.

Libraries match a pattern against a path and all below it. git matches it against one path, and does not enter a folder
that is left out: the rule `!/src` does not bring back `src/secrets`, which another rule leaves out.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

SPECIAL = b"*?[\\"  # bytes with a meaning; what stands before the first one is compared as it is
NEVER = re.compile(rb"(?!)")
CLASSES = {
    b"alnum": (string.ascii_letters + string.digits).encode(),
    b"alpha": string.ascii_letters.encode(),
    b"blank": b" \t",
    b"cntrl": bytes((*range(32), 127)),
    b"digit": string.digits.encode(),
    b"graph": bytes(range(33, 127)),
    b"lower": string.ascii_lowercase.encode(),
    b"print": bytes(range(32, 127)),
    b"punct": string.punctuation.encode(),
    b"space": b" \t\n\v\f\r",
    b"upper": string.ascii_uppercase.encode(),
    b"xdigit": string.hexdigits.encode(),
}


class _MalformedError(Exception):
    """The pattern matches nothing."""


@dataclass(frozen=True, slots=True)
class GitPattern:
    """One rule. `takes_back`: it begins with `!`."""

    takes_back: bool
    folders_only: bool
    by_name: bool  # without a slash: it is compared with the last part of the path
    regex: re.Pattern[bytes]

    def matches(self, path: bytes, *, is_folder: bool) -> bool:
        """`path` is relative to the folder of the rule's file, without a slash at its end. A link is no folder."""
        if self.folders_only and not is_folder:
            return False
        return self.regex.fullmatch(path.rpartition(b"/")[2] if self.by_name else path) is not None


def parse(text: bytes) -> list[GitPattern]:
    """The rules of a file, in their order."""
    lines = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")  # not splitlines: only a newline ends a rule
    found = (_line(line.removesuffix(b"\r")) for line in lines if not line.startswith(b"#"))
    return [pattern for pattern in found if pattern is not None]


def _line(line: bytes) -> GitPattern | None:
    line = _trimmed(line)
    takes_back = line.startswith(b"!")
    line = line[takes_back:]
    folders_only = line.endswith(b"/")
    line = line[: -1 if folders_only else None]
    if not line and not folders_only:
        return None
    by_name = b"/" not in line
    return GitPattern(takes_back, folders_only, by_name, _regex(line.removeprefix(b"/"), by_name))


def _trimmed(line: bytes) -> bytes:
    """Without the spaces at the end, but those behind a backslash."""
    bare = line.rstrip(b" ")
    slashes = len(bare) - len(bare.rstrip(b"\\"))
    return line[: len(bare) + 1] if slashes % 2 and len(line) > len(bare) else bare


def _regex(pattern: bytes, by_name: bool) -> re.Pattern[bytes]:
    plain = next((at for at, byte in enumerate(pattern) if byte in SPECIAL), len(pattern))
    if by_name and pattern.startswith(b"*") and not any(byte in SPECIAL for byte in pattern[1:]):
        return re.compile(rb".*" + re.escape(pattern[1:]), re.DOTALL)
    try:
        # git compares the plain beginning first, so `**` right behind it stands at a beginning
        body = _Translation(pattern if by_name else pattern[plain:], crosses=by_name).body()
    except _MalformedError:
        return NEVER
    return re.compile((b"" if by_name else re.escape(pattern[:plain])) + body, re.DOTALL)


@dataclass(slots=True)
class _Translation:
    """A pattern on its way to a regular expression. `crosses`: a star may match a slash."""

    text: bytes
    crosses: bool
    at: int = 0

    def body(self) -> bytes:
        parts = []
        while self.at < len(self.text):
            byte = self.text[self.at : self.at + 1]
            self.at += 1
            if byte == b"\\":
                parts.append(re.escape(self._next()))
            elif byte == b"?":
                parts.append(b"." if self.crosses else b"[^/]")
            elif byte == b"*":
                parts.append(self._stars())
            elif byte == b"[":
                parts.append(self._set())
            else:
                parts.append(re.escape(byte))
        return b"".join(parts)

    def _next(self) -> bytes:
        """The byte here. Raises _MalformedError at the end: a pattern that ends within a set or behind a backslash."""
        if self.at >= len(self.text):
            raise _MalformedError
        self.at += 1
        return self.text[self.at - 1 : self.at]

    def _stars(self) -> bytes:
        begin = self.at - 1
        while self.text[self.at : self.at + 1] == b"*":
            self.at += 1
        if self.crosses:
            return b".*"
        rest = self.text[self.at :]
        alone = (begin == 0 or self.text[begin - 1 : begin] == b"/") and (not rest or rest.startswith((b"/", b"\\/")))
        if self.at - begin == 1 or not alone:
            return b"[^/]*"
        if rest.startswith(b"/"):  # `**/` also matches nothing
            self.at += 1
            return b"(?:.*/)?"
        return b".*"

    def _set(self) -> bytes:
        negated = self.text[self.at : self.at + 1] in (b"!", b"^")
        self.at += negated
        members: set[int] = set()
        before, first = -1, True  # `before`: the byte that a range may begin with
        while first or self.text[self.at : self.at + 1] != b"]":
            first = False
            byte = self._next()
            rest = self.text[self.at :]
            if byte == b"\\":
                byte = self._next()
                members.add(byte[0])
            elif byte == b"-" and before >= 0 and rest and not rest.startswith(b"]"):
                last = self._next()
                last = self._next() if last == b"\\" else last
                members.update(range(before, last[0] + 1))
                before = -1
                continue
            elif byte == b"[" and rest.startswith(b":"):
                end = self.text.find(b"]", self.at + 1)
                if end < 0:
                    raise _MalformedError
                if self.text[end - 1 : end] == b":" and end - 1 > self.at:
                    members.update(self._class(self.text[self.at + 1 : end - 1]))
                    self.at, before = end + 1, -1
                    continue
                members.add(byte[0])
            else:
                members.add(byte[0])
            before = byte[0]
        self.at += 1
        chosen = set(range(256)) - members if negated else members
        if not self.crosses:
            chosen.discard(ord("/"))
        return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(chosen)) + b"]" if chosen else b"(?!)"

    def _class(self, name: bytes) -> bytes:
        if name not in CLASSES:
            raise _MalformedError
        return CLASSES[name]
