"""The line to quote of a program that ended by itself, from the end of what it has printed. Pure.

The last line is often none: the last state of a progress bar, the border of a box, a warning at the interpreter's exit, or the
summary of a launcher whose child has failed.
"""

from __future__ import annotations

import re

from .tracebacks import HEADER, LINK

# Warnings of torch that healthy jobs print as well: they say nothing of the end.
HARMLESS = (
    r"\s*(\[rank\d+\]:)?\s*\[W\d{4} .*(The hostname of the (client|server) socket cannot be retrieved"
    r"|Unable to resolve hostname to a \(local\) address|destroy_process_group\(\) was not called)"
)
# What a program may print after its failure: Hydra's words, torch's warnings at exit, warnings of Python with their source
# line, and the lines of tools that leave with it.
AFTERWORD = (
    r"set the environment variable hydra_full_error|(\[rank\d+\]:)?\s*\[W\d{4} |\S+:\d+: \w*Warning: "
    r"|\s*warnings\.warn\(|wandb: |\S*env: use -\[v\]S |\S+: line \d+: `|make(\[\d+\])?: \*\*\* |npm ERR!"
)
# How launchers say that a process below them has failed: torchrun, DeepSpeed, Accelerate, subprocess.
LAUNCHER = (
    r"\s*(?:(torch\.distributed\.elastic\.\S+\.)?ChildFailedError\b|(subprocess\.)?CalledProcessError: Command "
    r"|[EIW]\d{4} .*elastic/multiprocessing|.*\bFAILED\s*$|(Root Cause|Failures?|Other Failures)\b.*:$|\[\d+\]:\s*$"
    r"|<NO_OTHER_FAILURES>|.*\[launch\.py:\d+:|.*\bexits with return code = |Process \S+:$|srun: error: .*Exited with exit code)"
    r"|  (time|host|rank|exitcode|error_file|traceback) *: "
)
BORDER = r"[\s─━═\-=_*#~+.:╭╮╰╯┌┐└┘├┤┬┴┼╔╗╚╝╠╣┏┓┗┛│┃║|]*$"
TITLE = r"\s*[╭┌╔┏][─━═].*[╮┐╗┓]\s*$"
BOXED = r"\s*[│┃║|]\s?(.*?)\s*[│┃║|]\s*$"
# tqdm with and without a total: what follows on the line was printed behind the bar.
TQDM = (
    r"(?:[^|\n]{0,200}?\d+(?:\.\d+)?%\|[^|\n]{0,400}\|[^\[\n]{0,80}\[[^\]\n]{0,200}\]"
    r"|(?:[^:\n]{0,80}: )?\d[\d.,]*[kMGT]?\w{0,12} \[\d\d:\d\d[^\]\n]{0,120}\])"
)
# Bars of Keras, pip, rich, click, curl: the whole line.
BARS = (
    r"\s*\d+/\d+ +(\[[=>.#\- ]{5,}\]|[━╸╺\-=]{5,}).*$|.*\[[=#>\-. ]{6,}\] +\d+(\.\d+)?%.*$|.*\d+(\.\d+)?% ?\[[=#>\-. ]{6,}\].*$"
    r"|.*[━╸╺█▉▊▋▌▍▎▏▓▒░⣿⣀]{5,}[\s\d.:%/?,\-\w]*$"
)
FRAME = r'\s*(\[rank\d+\]:\s*)?(File "[^"]*", line \d+|\^+\s*$|~*\^+~*\s*$)'
# What Python prints of errors that end nothing, with a traceback of their own.
IGNORED = r"(Exception ignored in|Error in atexit\._run_exitfuncs|Exception in thread)\b"
# Words of an error.
ERROR = (
    r"\b(error|errors|fatal|critical|exception|fail(ed|ure|s)?|abort(ed|ing)?|cannot|can't|could not|couldn't|unable|denied"
    r"|refused|invalid|missing|no such|not found|not exist\w*|unknown|unrecognized|unexpected|illegal|corrupt\w*|panic|usage"
    r"|out of|no space|quota|exceed\w*|timed out|killed|bad)\b|Error\b"
)
SEARCHED = 1000  # characters of a line that are looked at
NEAR = 5  # meaningful lines: an error on stderr counts if no more of them follow on stdout
LONGEST_BOX = 400  # characters of the text in a box


def telling(tail: str) -> str:
    """The end of what a rank has printed, without torch's harmless warnings and progress bars."""
    harmless = re.compile(HARMLESS, re.IGNORECASE)
    lines = (_without_bar(line) for line in tail.split("\n") if not harmless.match(line[:SEARCHED]))
    return "\n".join(line for line in lines if line is not None)


def says_error(line: str) -> bool:
    """True where a line has words of an error."""
    return re.search(ERROR, line[:SEARCHED], re.IGNORECASE) is not None


def last_words(tail: str) -> str:
    """The last meaningful line; "" where nothing at all was printed."""
    own = _last_of(tail, launchers=False) or _last_of(tail, launchers=True)
    return own or next((line.strip() for line in reversed(tail.split("\n")) if line.strip()), "")


def _last_of(tail: str, *, launchers: bool) -> str:
    """The last meaningful line that is no afterword, "" if there is none; with `launchers` also what a launcher says."""
    raw = tail.split("\n")
    lines = [_meaning(line) for line in raw]
    quiet = _of_ignored(lines)
    for at in reversed(range(len(lines))):
        if not lines[at] or at in quiet or _of_traceback(lines[at]) or re.match(AFTERWORD, lines[at], re.IGNORECASE):
            continue
        if launchers or not by_launcher(lines[at]):
            return _in_box(raw, at) or lines[at].strip()
    return ""


def said_after(tail: str, words: str) -> str:
    """The last meaningful line that a program has printed after these words, but for what launchers say; "" if there is none.

    Words that are not in the tail were printed long before.
    """
    at = tail.rfind(words) if words else -1
    return _last_of(tail if at < 0 else tail[at + len(words) :].partition("\n")[2], launchers=False)


def told_on_stdout(stderr: str, printed: str) -> bool:
    """True where a program has told its end on stdout: stderr has no error among the last lines. `printed` is the end of both
    streams."""
    words, last = last_words(stderr), last_words(printed)
    if not last or last == words:
        return False
    return not (says_error(words) and is_near_end(words, printed))


def is_near_end(words: str, printed: str) -> bool:
    """True where these words are in one of the last meaningful lines, those of tracebacks left out: what follows may have been
    printed before them, on the other stream."""
    lines = [line for line in map(_meaning, printed.split("\n")) if line and not _of_traceback(line)]
    return any(words in line for line in lines[-NEAR:])


def by_launcher(line: str) -> bool:
    """True for a line by which a launcher says that a process below it has failed."""
    return re.match(LAUNCHER, line[:SEARCHED]) is not None


def _without_bar(line: str) -> str | None:
    """A line without a progress bar, None where nothing is left."""
    cut = line[:SEARCHED]
    if "%" in cut or "[" in cut or re.match(BARS, cut):
        behind = "" if re.match(BARS, cut) else re.sub(rf"^{TQDM}", "", cut)
        return line if behind == cut else behind + line[SEARCHED:] if behind.strip() else None
    return line


def _meaning(line: str) -> str:
    """A line without a progress bar; "" for a border, the title of a box, or a line that is a bar altogether.

    The inside of a box keeps its indentation, as a traceback has one.
    """
    told = _without_bar(line)
    if told is None or not re.search(r"\w", told.replace("_", "")) or re.match(TITLE, told[:SEARCHED]):
        return ""
    boxed = re.match(BOXED, told[:SEARCHED])
    return boxed[1] if boxed and boxed[1].strip() else told


def _of_traceback(line: str) -> bool:
    """True for a line of a traceback that is no exception."""
    return bool(re.match(FRAME, line) or HEADER in line or re.match(LINK, line) or line.startswith("    "))


def _of_ignored(lines: list[str]) -> set[int]:
    """The lines by which Python tells an error that ended nothing, with its traceback."""
    found: set[int] = set()
    for at, line in enumerate(lines):
        if not re.match(IGNORED, line):
            continue
        found.add(at)
        end = at + 1
        while end < len(lines) and (HEADER in lines[end] or lines[end].startswith("  ") or not lines[end]):
            found.add(end)
            end += 1
        if end > at + 1:
            found.add(end)  # the exception
    return found


def _in_box(lines: list[str], at: int) -> str:
    """The whole text of the box that line `at` is in, "" where it is in none: boxes wrap long lines."""
    begin = at
    while begin >= 0 and _inside(lines[begin]):
        begin -= 1
    text = " ".join(_inside(line) for line in lines[begin + 1 : at + 1])
    return text if len(text) <= LONGEST_BOX else _inside(lines[at])


def _inside(line: str) -> str:
    """What stands between the sides of a box."""
    boxed = re.match(r"\s*[│┃║]\s?(.*?)\s*[│┃║]\s*$", line[:SEARCHED])
    return boxed[1].strip() if boxed else ""
