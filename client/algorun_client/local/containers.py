"""The containers and networks of local jobs: their labels, by which whoever comes next finds those that were left."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from algorun.common.json_values import text
from algorun_client.common.errors import ApiError

from .docker_engine import DockerEngine
from .job_folder import JobFolder

FILE = "containers.json"  # in the job's folder, if its hosts are containers
JOB_LABEL, ROOT_LABEL = "org.algorun.local-job", "org.algorun.local-root"
# Files of root become those of the user who owns $1, in whatever way the engine maps users.
GIVE_BACK = 'reference=$1; shift; chown -R "$(stat -c %u:%g "$reference")" "$@" && chmod -R u+rwX "$@"'
GIVE_BACK_S = 600.0  # for millions of files


@dataclass(frozen=True, slots=True)
class Containers:
    """What a job's containers are made of."""

    engine: DockerEngine
    image: str  # its identity

    def to_json(self) -> dict[str, str]:
        """For the job's folder."""
        return {"engine": self.engine.address, "image": self.image}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Containers:
        """What `to_json` made. Raises ValueError."""
        return cls(DockerEngine(text(value.get("engine"))), text(value.get("image")))

    @classmethod
    def of(cls, folder: JobFolder) -> Containers | None:
        """Those of a job; None if its hosts are simulated."""
        try:
            value = folder.read(FILE)
        except FileNotFoundError:
            return None
        try:
            return cls.from_json(value)
        except ValueError as error:
            raise folder.damaged(FILE, error) from None


def name_of(folder: JobFolder) -> str:
    """The name of the job's network, and the beginning of its containers' names; unlike that of every other job."""
    return f"algorun-{folder.job}-{hashlib.sha256(os.fsencode(folder.path)).hexdigest()[:8]}"


def container_name(folder: JobFolder, host: str) -> str:
    """The name of a host's container."""
    return f"{name_of(folder)}-{host}"


def labels(folder: JobFolder) -> list[str]:
    """The options of `docker create` that say whose a container or network is."""
    return ["--label", f"{JOB_LABEL}={folder.path}", "--label", f"{ROOT_LABEL}={folder.root}"]


def remove(engine: DockerEngine, job: Path, named: str = "") -> None:
    """Removes the containers and the network of a job. Raises ApiError if some are left.

    `named`: only those that have it in their name. So that of `give_back`, which has no name from here, is left to its work.
    """
    names = ("--filter", f"name={named}") if named else ()
    found = ("--filter", f"label={JOB_LABEL}={job}", *names, "--quiet", "--no-trunc")
    _remove_all(engine, ["ps", "--all", *found], ["rm", "--force", "--volumes"])
    _remove_all(engine, ["network", "ls", *found], ["network", "rm"])


def _remove_all(engine: DockerEngine, listing: list[str], removal: list[str]) -> None:
    for is_last in (False, False, True):
        ids = engine.call(*listing).split()
        if not ids:
            return
        try:
            engine.call(*removal, *ids)
        except ApiError:  # another process may remove the same ones
            if is_last:
                raise


def remove_orphans(engine: DockerEngine, root: Path) -> None:
    """Removes what jobs below `root` have left whose runners were killed, together with their machine for example."""
    filtered = ("--filter", f"label={ROOT_LABEL}={root}", "--format", f'{{{{.Label "{JOB_LABEL}"}}}}')
    text = engine.call("ps", "--all", *filtered) + engine.call("network", "ls", *filtered)
    for job in sorted({line for line in text.splitlines() if line}):
        try:
            with JobFolder.at(Path(job)).own() as is_ours:
                if is_ours:
                    remove(engine, Path(job))
        except FileNotFoundError:  # the job's folder was deleted
            remove(engine, Path(job))


def clear(folder: JobFolder, containers: Containers) -> None:
    """After a job whose runner was killed: removes its containers, and makes their files the caller's. Raises ApiError."""
    remove(containers.engine, folder.path)
    give_back(folder, containers)


def first_process(engine: DockerEngine, container: str, proc: Path = Path("/proc")) -> int | None:
    """The number by which this machine knows a container's first process. None if it runs out of this program's sight.

    An engine may have process numbers of its own, if this program is in a container: the cgroup tells whose a number is.
    """
    try:
        text = engine.call("container", "inspect", "--format", "{{.State.Pid}} {{.Id}}", container)
        pid, _, identity = text.strip().partition(" ")
        cgroup = (proc / pid / "cgroup").read_text(encoding="utf-8", errors="replace")
    except (ApiError, OSError):
        return None
    return int(pid) if identity and identity in cgroup else None


def give_back(folder: JobFolder, containers: Containers) -> None:
    """Makes the files of all hosts the caller's: programs in containers run as root. Raises ApiError."""
    trees = folder.hosts
    if os.geteuid() == 0 or not trees.is_dir() or not has_foreign_files(trees):
        return
    containers.engine.call(
        *("run", "--rm", "--network", "none", "--user", "0", *labels(folder), *mount(trees, "/hosts")),
        *("--entrypoint", "sh", containers.image, "-c", GIVE_BACK, "sh", "/hosts", "/hosts"),
        limit_s=GIVE_BACK_S,
    )


def has_foreign_files(folder: Path) -> bool:
    """True if a file or folder below is another user's."""
    own = os.geteuid()
    return any(
        os.lstat(os.path.join(top, name)).st_uid != own
        for top, inner, names in os.walk(folder)
        for name in (*inner, *names)
        if os.path.lexists(os.path.join(top, name))
    )


def mount(source: Path, target: str, *, read_only: bool = False) -> list[str]:
    """The option of `docker create` for a folder. Its value is a line of CSV, so a path may hold commas and colons."""
    fields = ["type=bind", f"source={source}", f"target={target}", *(["readonly"] if read_only else [])]
    return ["--mount", ",".join('"' + each.replace('"', '""') + '"' for each in fields)]
