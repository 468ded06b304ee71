"""What ran, and on what: a report shows it above a job's curves. Pure."""

from __future__ import annotations

import shlex
from collections import Counter

from algorun.common import __version__
from algorun.common.secret_names import HIDDEN, without_secrets
from algorun.job.config import JobConfig
from algorun.machine.probe import Machine

from . import redaction

LONGEST_COMMAND = 4096  # characters


def what_ran(config: JobConfig, machine: Machine) -> dict[str, object]:
    """The command line of a rank without secrets, and this host's software and hardware, as values of JSON."""
    code = f"{config.code}/"
    words = [word.removeprefix(code) for word in without_secrets(config.entry.argv("python"))]
    gpus = Counter(machine.nvidia.models) if machine.gpus.value else {}
    return {
        "command": redaction.text(shlex.join(words).replace(shlex.quote(HIDDEN), HIDDEN), config)[:LONGEST_COMMAND],
        "engine": config.launch.engine.value.value,
        "versions": {"algorun": __version__, "Python": machine.python, **machine.packages},
        "image": machine.image,
        "cpus": machine.cpus.value,
        "memory_bytes": machine.memory_bytes,
        "gpus": dict(gpus) or ({"GPU": machine.gpus.value} if machine.gpus.value else {}),
    }
