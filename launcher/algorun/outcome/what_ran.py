"""What ran, and on what: a report shows it above a job's curves."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter

from algorun.common import __version__
from algorun.common.secret_names import HIDDEN, without_secrets
from algorun.common.secret_values import hidden
from algorun.job import settings
from algorun.job.config import JobConfig
from algorun.machine import probe
from algorun.machine.probe import Machine

from . import redaction

LONGEST_COMMAND, LONGEST_COMMIT = 4096, 100  # characters


def what_ran(config: JobConfig, machine: Machine, python: str) -> dict[str, object]:
    """The command line of a rank without secrets, and this host's software and hardware, as values of JSON.

    `python`: the interpreter of ranks. Versions are looked up now: the job's requirements may have replaced packages.
    """
    prefix = os.path.dirname(os.path.dirname(python))
    major, minor = sys.version_info[:2]
    own = f"{prefix}/lib/python{major}.{minor}/site-packages"  # sysconfig says the same, but its import takes long
    code = f"{config.code}/"
    words = [word.removeprefix(code) for word in without_secrets(config.entry.argv("python"))]
    # shlex changes these quotation marks, so secrets between them are hidden first.
    words = [hidden(word) if "'" in word else word for word in words]
    gpus = Counter(machine.nvidia.models) if machine.gpus.value else {}
    return {
        "command": redaction.text(shlex.join(words).replace(shlex.quote(HIDDEN), HIDDEN), config)[:LONGEST_COMMAND],
        "commit": settings.CODE_COMMIT.read(config.environ)[:LONGEST_COMMIT],
        "engine": config.launch.engine.value.value,
        "versions": {"algorun": __version__, "Python": machine.python, **probe.packages(before=[own])},
        "image": machine.image,
        "cpus": machine.cpus.value,
        "memory_bytes": machine.memory_bytes,
        "gpus": dict(gpus) or ({"GPU": machine.gpus.value} if machine.gpus.value else {}),
    }
