"""What all hosts must agree on. Pure: the hub compares it key by key, and names the first difference."""

from __future__ import annotations

import shlex

from algorun import __version__
from algorun.job.config import JobConfig
from algorun.machine.probe import Machine

from . import render

LONGEST_PROGRAM = 500  # characters of the command line in a message


def at_first(config: JobConfig, machine: Machine) -> dict[str, str]:
    """What is known before the user's code is here."""
    digest = {
        "algorun version": __version__,
        "hosts": ",".join(config.resources.hosts),
        "python version": machine.python,
    }
    if machine.image:  # two images can hold the same versions and different programs
        digest["image"] = machine.image
    return digest | {f"{name} version": version for name, version in machine.packages.items()}


def at_the_start(config: JobConfig, machine: Machine, source: str, slots: int) -> dict[str, str]:
    """What will run. `source` is the checksum of the fetched code, "" where none was fetched.

    Hosts may carry different numbers of ranks, unless ALGORUN_EQUAL_SLOTS=1 says that this would be a mistake.
    """
    digest = {"engine": config.launch.engine.value, "program": shown(config), "restarts": str(config.launch.restarts)}
    if config.equal_slots:
        digest["slots"] = str(slots)
    if machine.openmpi is not None:  # mpirun of one version cannot use the daemons of another
        digest["Open MPI version"] = str(machine.openmpi.major)
    return digest | ({"source": source} if source else {})


def shown(config: JobConfig) -> str:
    """The command line as hosts compare it and a failure may show it: short, and without secrets."""
    words = config.entry.argv("python")
    shown, hidden = list(words), False
    for index, word in enumerate(words):
        hide, hidden = hidden, word.startswith("-") and render.is_secret(word)
        if hide or (hidden and "=" in word):
            shown[index] = "***"
    text = shlex.join(shown)
    whole = shlex.join(words)
    if text == whole and len(text) <= LONGEST_PROGRAM:
        return text
    import hashlib  # 3 ms that few command lines need

    return f"{text[:LONGEST_PROGRAM]}.. (sha256 {hashlib.sha256(whole.encode('utf-8', 'replace')).hexdigest()[:16]})"
