"""Prints docs/api.md, what programs import and what a job file holds: python docs/api_page.py > docs/api.md

The names come from `__all__` of the public modules, their texts from the docstrings, read as source: torch need not be
installed. The job file's keys come from the options of `submit`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "client"))

from algorun_client.submit.read import common_options, job_file, sweep, tune
from algorun_client.submit.read.layers import PRICE, SINGLE, TABLES, TASK_KEYS, TOP_KEYS
from algorun_client.submit.read.submit_options import FLAGS, TABLE_HELP

ROOT = Path(__file__).resolve().parents[1]
Definition: TypeAlias = ast.FunctionDef | ast.ClassDef

MODULES = ("algorun", "algorun.data", "algorun.pipeline", "algorun.checkpoints")
VERSION = "__version__"  # no definition of its own
# What `pipeline` returns. Its other methods serve the library.
RETURNED = {"pipeline": "Pipeline"}
MEMBERS = {
    "Pipeline": (
        *("parameters", "named_parameters", "step", "everywhere", "clip", "evaluate", "train", "eval"),
        *("state_dict", "load_state_dict", "is_first", "is_last"),
    ),
}
SECTIONS = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Returns": "Returns",
    "Yields": "Yields",
    "Raises": "Raises",
}
LONGEST = 100  # characters of a signature on one line

HEAD = """# API: what your programs import, and the keys of the job file

```
pip install ./launcher           # import algorun: standard library only
pip install ./launcher ./train   # algorun.data, algorun.pipeline, algorun.checkpoints: with torch
```

In the image both are installed. If a name of this page changes, [upgrade.md](upgrade.md) says so; all other names of the
packages are internal and may change in any version. `help(NAME)` in Python shows the same texts. The commands are in
[submit.md](submit.md), the variables `ALGORUN_*` in [settings.md](settings.md).

<!-- Written by docs/api_page.py from the docstrings and from the options of `submit`. -->
"""
JOB_FILE = """## The job file

`algorun submit` reads `algorun.toml` in the current folder, or `--file PATH`. Keys at the top hold for all tasks; each
`[task.NAME]` is a task. A flag wins over its key. An unknown key is refused with the nearest known one.
[submit.md](submit.md#write-a-job-file) has a complete file.
"""
# One value for each key, as a job file writes it. A test reads all of them.
EXAMPLES = {
    "project": '"imagenet"',
    "bucket": '"my-bucket"',
    "prefix": '"teams/vision"',
    "image": '"123456789012.dkr.ecr.eu-west-1.amazonaws.com/algorun:0.2.0"',
    "role": '"SageMakerRole"',
    "kms_key": '"alias/my-key"',
    "region": '"eu-west-1"',
    "profile": '"work"',
    "where": '"local"',
    "docker": "true",
    "kind": '"processing"',
    "run": '["train.py", "--epochs", "10"]',
    "module": '"package.train"',
    "shell": '"python prepare.py && ls out"',
    "code": '"src"',
    "max_code": '"500MB"',
    "add": '["lib", "../shared/tools.py"]',
    "cwd": '"state"',
    "engine": '"torchrun"',
    "slots": "4",
    "per_gpu": "true",
    "per_host": "true",
    "share_nothing": "true",
    "hold_on_failure": '"30m"',
    "restarts": "3",
    "instance": '"ml.g5.12xlarge"',
    "hosts": "3",
    "volume": "100",
    "max_run": '"12h"',
    "max_wait": '"1d12h"',
    "max_cost": "50",
    "spot": "true",
    "until_done": "true",
    "retries": "2",
    "keep_alive": '"30m"',
    "subnets": '["subnet-0a1b2c3d"]',
    "security_groups": '["sg-0a1b2c3d"]',
    "network_isolation": "true",
    "out": '["images"]',
    "tensorboard": "true",
    "in": '{ train = "s3://bucket/images,shard" }',
    "metrics": '{ loss = "Loss ([0-9.e+-]+)" }',
    "tags": '{ team = "vision" }',
    "env": '["WANDB_PROJECT", "NCCL_DEBUG=WARN"]',
    "hyperparameters": "{ lr = 0.1 }",
    "instance_groups": '{ gpu = "ml.g5.12xlargex2", cpu = "ml.c5.4xlargex1" }',
    PRICE: '{ "ml.g5.12xlarge" = 7.09 }',
    job_file.SWEEP: '{ grid = { lr = [0.1, 0.01] }, best = "loss min" }',
    job_file.TUNE: '{ goal = "min:loss", points = 30, space = { lr = { from = 1e-5, to = 0.1, log = true } } }',
}
ORDER = (*SINGLE, *TABLES, PRICE, job_file.SWEEP, job_file.TUNE)
# Keys without a flag, and flags whose help says less than a table has to.
WORDS = {
    "run": ("PROGRAM ARGS", "a script, a bundled entrypoint or a command of the image, with its arguments"),
    "instance": ("--instance TYPE", "the instance type of the hosts"),
    "region": (
        "--region",
        "an AWS region, or several in order of preference; a table `[regions.NAME]` has what one of them has of its own "
        "([submit.md](submit.md#name-other-regions-where-there-is-no-room))",
    ),
    PRICE: (
        "",
        "the price of one host for one hour, by instance type: for `max_cost`, and for the costs that commands print",
    ),
    job_file.TUNE: (
        "",
        f"a table with {', '.join(tune.KEYS)}: results choose the points ([chains.md](chains.md#let-results-choose-the-values))",
    ),
    job_file.SWEEP: (
        "",
        f"a table with {', '.join(sweep.KEYS)}: one task for each point ([chains.md](chains.md#try-several-values))",
    ),
}


@dataclass(frozen=True, slots=True)
class Module:
    """A module as source."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def package(self) -> str:
        """What a relative import of one dot counts from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def public(self) -> list[str]:
        """`__all__`, sorted, with errors at the end; without it nothing."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return sorted(ast.literal_eval(node.value), key=lambda name: (name.endswith("Error"), name))
        return []

    def imported(self, name: str) -> tuple[str, str] | None:
        """Module and name that `name` is imported from."""
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
                above = self.package.split(".")[: len(self.package.split(".")) - node.level + 1] if node.level else []
                original = next(each.name for each in node.names if (each.asname or each.name) == name)
                return ".".join([*above, *([node.module] if node.module else [])]), original
        return None


def read_module(name: str) -> Module | None:
    """A module of the launcher or of training; None for one of another distribution."""
    for top in ("launcher", "train"):
        base = ROOT.joinpath(top, *name.split("."))
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.exists():
                return Module(name, path, ast.parse(path.read_text(encoding="utf-8")))
    return None


def definition(module: Module, name: str) -> tuple[Module, Definition]:
    """Where a name is defined, followed through imports. Raises KeyError."""
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
    origin = module.imported(name)
    source = read_module(origin[0]) if origin else None
    if origin is None or source is None:
        raise KeyError(f"{module.name} has no {name}")
    return definition(source, origin[1])


def alias(module: Module, name: str) -> str | None:
    """The value of a type that a module names, such as `Callable[..]`; None if it is no such name."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.unparse(node.value)
    origin = module.imported(name)
    source = read_module(origin[0]) if origin else None
    return alias(source, origin[1]) if origin and source else None


def parameters(function: ast.FunctionDef) -> list[str]:
    """Its parameters as they are written, without self."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    listed = [_parameter(each, value) for each, value in zip(plain, defaults, strict=True) if each.arg != "self"]
    if given.vararg:
        listed.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        listed.append("*")
    listed += [_parameter(each, value) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return listed + ([f"**{_parameter(given.kwarg, None)}"] if given.kwarg else [])


def _parameter(each: ast.arg, value: ast.expr | None) -> str:
    kind = f": {ast.unparse(each.annotation)}" if each.annotation else ""
    return f"{each.arg}{kind}" + (f" = {ast.unparse(value)}" if value else "")


def signature(module: Module, name: str, function: ast.FunctionDef, result: str) -> str:
    """A block of code: the call, and the types that it names."""
    listed = parameters(function)
    line = f"{name}({', '.join(listed)}){result}"
    if len(line) > LONGEST:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in listed) + f"){result}"
    words = dict.fromkeys(re.findall(r"\b[A-Z]\w+", line))
    types = {word: value for word in words if (value := alias(module, word)) and "Callable" in value}
    return "\n".join(["```python", line, *(f"# {word} = {value}" for word, value in types.items()), "```"])


def rendered(docstring: str) -> str:
    """A docstring as Markdown: code becomes a block, a section becomes a list."""
    lines: list[str] = []
    for block in re.split(r"\n\n(?! )", docstring):  # a block with the indented lines below it
        title, _, rest = block.partition(":\n")
        if title in SECTIONS:
            lines.append(f"**{SECTIONS[title]}**\n\n{_section(rest, named=title not in ('Returns', 'Yields'))}")
        else:
            text, _, code = block.partition("\n\n    ")
            lines.append(text)
            if code:
                lines.append("```python\n" + re.sub("^    ", "", code, flags=re.MULTILINE) + "\n```")
    return "\n\n".join(lines)


def _section(text: str, *, named: bool) -> str:
    """The entries of a section, each of one line or more."""
    entries: list[str] = []
    for line in text.splitlines():
        if line.startswith("     ") or (entries and not named):
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line.strip())
    if not named:
        return "\n".join(entries)
    return "\n".join(f"- `{name}`: {meaning}" for name, _, meaning in (entry.partition(": ") for entry in entries))


def documented(node: ast.FunctionDef | ast.ClassDef | ast.Module) -> str:
    """The docstring as Markdown, for a page in docs/."""
    return re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", rendered(ast.get_docstring(node) or ""))


def is_property(function: ast.FunctionDef) -> bool:
    """Whether it is read without a call."""
    return any(ast.unparse(each) == "property" for each in function.decorator_list)


def members(name: str, found: ast.ClassDef) -> list[ast.FunctionDef]:
    """The public methods and properties of a class, in the order of MEMBERS or else of the source."""
    functions = {each.name: each for each in found.body if isinstance(each, ast.FunctionDef)}
    listed = MEMBERS.get(name) or [each for each in functions if each != "__init__" and not re.match("_[^_]", each)]
    return [functions[each] for each in listed]


def function_part(module: Module, name: str, function: ast.FunctionDef) -> Iterator[str]:
    """What the page says about a function or method."""
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    if is_property(function):
        yield f"```python\n{name}{result.replace(' -> ', ': ')}\n```"
    else:
        yield signature(module, name, function, result)
    yield documented(function)


def class_part(module: Module, name: str, found: ast.ClassDef) -> Iterator[str]:
    """What the page says about a class and its members."""
    bases = [ast.unparse(each) for each in found.bases]
    makes = next((each for each in found.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
    if name in RETURNED.values():
        yield f"What `{next(each for each, returned in RETURNED.items() if returned == name)}` returns."
    elif makes:
        yield signature(module, name, makes, "")
    else:
        yield f"```python\nclass {name}({', '.join(bases)})\n```"
    yield documented(found)
    for each in members(name, found) if makes else ():
        yield f"#### {name}.{each.name}"
        yield from function_part(module, each.name, each)


def module_part(module: Module, seen: dict[str, str]) -> Iterator[str]:
    """What the page says about a public module. `seen`: where the page has a definition already, by its own place."""
    yield f"## {module.name}"
    yield documented(module.tree)
    for name in module.public:
        if name == VERSION:
            yield f"### {module.name}.{name}\n\nThe version, a text such as `0.2.0`."
            continue
        where, found = definition(module, name)
        yield f"### {module.name}.{name}"
        if (first := seen.setdefault(f"{where.name}.{name}", f"{module.name}.{name}")) != f"{module.name}.{name}":
            yield f"The same as `{first}`."
        elif isinstance(found, ast.ClassDef):
            yield from class_part(where, name, found)
        else:
            yield from function_part(where, name, found)
        if returned := RETURNED.get(name):
            where, made = definition(where, returned)
            assert isinstance(made, ast.ClassDef)
            yield f"### {returned}"
            yield from class_part(where, returned, made)


class _Options:
    """Collects the options of `submit` that all commands share: name and help by key."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, str]] = {}

    def add_argument(self, *names: str, **settings: object) -> object:
        """As that of a parser; keeps the first name and the help."""
        self.found[names[0].removeprefix("--").replace("-", "_")] = (names[0], str(settings.get("help", "")))
        return None


def keys() -> dict[str, tuple[str, str]]:
    """Flag and meaning of each key of the job file."""
    shared = _Options()
    common_options.add_where_options(shared)
    common_options.add_place_options(shared)
    found = {key: entry for key, entry in shared.found.items() if key in TOP_KEYS}
    for flag in (flag for group in FLAGS.values() for flag in group):
        if flag.key in TABLES:
            found[flag.key] = (f"{TABLES[flag.key]} NAME=..", TABLE_HELP[flag.key])
        else:
            found[flag.key] = (" ".join(filter(None, (flag.names[0], flag.metavar))), flag.help)
    found |= WORDS
    return {key: found[key] for key in ORDER if key in (*TOP_KEYS, *TASK_KEYS, job_file.SWEEP, job_file.TUNE)}


def place(key: str) -> str:
    """Where a key may stand."""
    if key in (job_file.SWEEP, job_file.TUNE) or key not in TOP_KEYS:
        return "task"
    return "top, task" if key in TASK_KEYS else "top"


def key_part() -> Iterator[str]:
    """The table of the job file's keys."""
    rows = ["| key | where | example | flag | meaning |", "|---|---|---|---|---|"]
    for key, (flag, meaning) in keys().items():
        shown = f"`{flag}`" if flag else ""
        rows.append(f"| `{key}` | {place(key)} | `{EXAMPLES[key]}` | {shown} | {meaning} |")
    yield JOB_FILE.rstrip()
    yield "\n".join(rows)


def page() -> str:
    """The whole page."""
    parts, seen = [HEAD.rstrip()], dict[str, str]()
    for name in MODULES:
        module = read_module(name)
        assert module is not None
        parts += module_part(module, seen)
    return "\n\n".join([*parts, *key_part()]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
