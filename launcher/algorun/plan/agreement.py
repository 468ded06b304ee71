"""The facts on which all hosts must agree: the hub compares them key by key and reports the first difference. Pure."""

from __future__ import annotations

import shlex

from algorun.common import __version__
from algorun.common.secret_names import without_secrets
from algorun.job.config import JobConfig
from algorun.job.paths import DEFAULT_BASE
from algorun.machine.probe import Machine

LONGEST_PROGRAM = 500  # characters of a command line in a message


def at_first(config: JobConfig, machine: Machine) -> dict[str, str]:
    """The facts that are known before the user's code is fetched."""
    digest = {
        "algorun version": __version__,
        "hosts": ",".join(config.resources.hosts),
        "python version": machine.python,
    }
    if machine.image:  # two images can have equal versions and different programs
        digest["image"] = machine.image
    return digest | {f"{name} version": version for name, version in machine.packages.items()}


def at_the_start(config: JobConfig, machine: Machine, source: str, slots: int) -> dict[str, str]:
    """The facts about the program. `source`: the checksum of the fetched code, "" if none was fetched.

    Hosts may have different numbers of slots, unless ALGORUN_EQUAL_SLOTS=1.
    """
    digest = {"engine": config.launch.engine.value, "program": shown(config), "restarts": str(config.launch.restarts)}
    if config.preflight is not None:  # ranks that measure would wait for the others
        digest["ALGORUN_PREFLIGHT"] = f"{config.preflight[0]}:{config.preflight[1]:g}"
    if config.launch.tf_config:
        digest["TF_CONFIG"] = "wanted"
    if config.equal_slots and not config.launch.engine.value.has_driver:  # a driver is on one host only
        digest["slots"] = str(slots)
    if machine.openmpi is not None:  # mpirun cannot use daemons of another version
        digest["Open MPI version"] = str(machine.openmpi.major)
    if machine.ray is not None:  # nodes of a cluster must have one version
        digest["Ray version"] = machine.ray.version
    return digest | ({"source": source} if source else {})


def shown(config: JobConfig) -> str:
    """The command line for comparison and for messages: secrets hidden, shortened, with a hash of the whole if so."""
    # Simulated hosts have code folders of their own, and /opt/ml in arguments is a folder of each.
    target, code, base = config.entry.target, f"{config.code}/", str(config.paths.base)
    words = [word.removeprefix(code) if word == target else word for word in config.entry.argv("python")]
    words = [word.replace(base, DEFAULT_BASE) for word in words]
    text = shlex.join(without_secrets(words))
    whole = shlex.join(words)
    if text == whole and len(text) <= LONGEST_PROGRAM:
        return text
    import hashlib  # 3 ms; few command lines need it

    return f"{text[:LONGEST_PROGRAM]}.. (sha256 {hashlib.sha256(whole.encode('utf-8', 'replace')).hexdigest()[:16]})"
