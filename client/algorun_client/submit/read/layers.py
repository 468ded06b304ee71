"""Options in layers: the job file's defaults, the task's table, the flags. A later layer wins; tables are joined. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TypeAlias

from algorun.common.errors import UserError

from . import values

SITE = ("region", "profile", "where")  # keys that hold for all tasks of a job file
SINGLE = (
    *("project", "task", "bucket", "prefix", "image", "role", "kms_key", *SITE, "docker", "kind"),
    *("run", "module", "shell", "code", "max_code", "add", "cwd"),
    *("engine", "slots", "per_gpu", "per_host", "share_nothing", "restarts", "hold_on_failure"),
    *("instance", "hosts", "layout", "volume", "max_run", "max_wait", "max_cost", "spot", "retries", "keep_alive"),
    "until_done",
    *("subnets", "security_groups", "network_isolation", "out", "tensorboard"),
)
# Tables NAME = VALUE. The flag of each is `--FLAG NAME=VALUE`, and may be repeated.
TABLES = {
    "in": "--in",
    "metrics": "--metric",
    "tags": "--tag",
    "env": "--env",
    "hyperparameters": "--hyperparameter",
    "instance_groups": "--instance-group",
}
FORMS = {
    "in": "NAME=SOURCE[,shard][,mode=fastfile][,extract]",
    "metrics": "NAME=REGEX",
    "tags": "KEY=VALUE",
    "env": "NAME or NAME=VALUE",
    "hyperparameters": "NAME=VALUE",
    "instance_groups": "NAME=TYPExN",
}
FLAGS_ONLY = ("task", "layout")  # keys that a job file does not have
PRICE = "price"  # a key without a flag, at the top of a job file: { "ml.g5.12xlarge" = 5.67 }
REGION_KEYS = ("bucket", "image", "kms_key", "subnets", "security_groups", "in", PRICE)  # of a table [regions.NAME]
TASK_KEYS = tuple(key for key in (*SINGLE, *TABLES) if key not in (*SITE, *FLAGS_ONLY))
TOP_KEYS = (*(key for key in (*SINGLE, *TABLES) if key not in (*FLAGS_ONLY, "run", "module", "shell")), PRICE)


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was given, and where."""

    where: str  # the option, or file and key
    raw: object
    folder: str  # relative paths of the value count from here

    def absolute(self, path: str) -> str:
        """A path of the value, absolute and without `.`."""
        return str(PurePosixPath(self.folder) / path)


Table: TypeAlias = Mapping[str, Given]


@dataclass(frozen=True, slots=True)
class Layer:
    """Values of one source."""

    single: Mapping[str, Given] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)  # by key, then by name


def of_table(where: str, table: Mapping[str, object], allowed: Sequence[str], folder: str) -> Layer:
    """The layer of a TOML table. Raises UserError on a key that is not allowed."""
    values.known(where, table, allowed)
    single: dict[str, Given] = {}
    tables: dict[str, Table] = {}
    for key, raw in table.items():
        place = f"{where} {key}"
        if key not in TABLES:
            single[key] = Given(place, raw, folder)
        elif isinstance(raw, Mapping):
            typed = key == "hyperparameters"  # a flag's value is text whatever it means
            tables[key] = {
                name: Given(f"{place}.{name}", values.hyperparameter(name, value) if typed else value, folder)
                for name, value in raw.items()
            }
        elif key == "env" and isinstance(raw, list):
            tables[key] = named_values(key, place, values.words(place, raw), folder)
        else:
            raise UserError(place, f"{raw!r} is not a table", allowed="such as { name = value }")
    return Layer(single, tables)


def merged(layers: Iterable[Layer]) -> Layer:
    """The layers as one: the last one wins."""
    single: dict[str, Given] = {}
    tables: dict[str, dict[str, Given]] = {}
    for layer in layers:
        single.update(layer.single)
        for key, table in layer.tables.items():
            tables.setdefault(key, {}).update(table)
    return Layer(single, tables)


def named_values(key: str, flag: str, items: Iterable[str], folder: str) -> Table:
    """The table that a flag NAME=VALUE makes, given several times. Raises UserError for another form, or a name given twice."""
    found: dict[str, Given] = {}
    for item in items:
        name, equals, value = item.partition("=")
        is_of_caller = key == "env" and not equals
        if not is_of_caller and not (name and equals):
            raise UserError(flag, f"{item!r} is not {FORMS[key]}", allowed=FORMS[key])
        if name in found:
            raise UserError(flag, f"{name!r} is given twice", fix="drop one of the two")
        found[name] = Given(f"{flag} {name}", None if is_of_caller else value, folder)
    return found
