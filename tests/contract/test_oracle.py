"""The same job folder under AWS's sagemaker-training 5.1.4 and under algorun: the user's program must see the same.

Needs sagemaker-training beside this Python (the `test` extra on Linux).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import replace
from algorun.job.config import LaunchRequest, read_config
from algorun.plan import cluster, plan
from tests.conftest import PROGRAMS, machine
from tests.contract.differences import WANTED, Seen, of_toolkit
from tests.contract.trees import REFUSED, TREES, Tree

TOOLKIT = Path(__file__).parent / "toolkit.py"
CASES = (*TREES, *(refused for refused, *_ in REFUSED))
RUN = {
    *("shell", "shell-not-executable", "bash-not-executable", "shell-without-a-first-line"),
    *("command", "command-not-executable", "first-line-with-options"),
}
Differing = list[tuple[str, str | None, str | None]]  # fact, the toolkit's value, ours

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sagemaker_training") is None,
    reason="sagemaker-training is not installed beside this Python: nothing to compare with",
)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def environ(tree: Tree, folder: Path) -> dict[str, str]:
    """The container's environment, with the devices of `tree` as the toolkit looks for them."""
    tools = folder / "tools"
    if tree.gpus:
        program(tools / "nvidia-smi", "\n".join(f"echo 'GPU {n}: NVIDIA'" for n in range(tree.gpus)))
    if tree.neurons:
        program(tools / "neuron-ls", f"echo '{json.dumps([{'nc_count': 1}] * tree.neurons)}'")
    base = {"SAGEMAKER_BASE_DIR": str(folder / "ml"), "PATH": f"{tools}:/usr/bin:/bin", "HOME": "/nonexistent"}
    return {**base, "AWS_EC2_METADATA_DISABLED": "true", **tree.environ}


def under_algorun(tree: Tree, folder: Path) -> Seen:
    """The first rank of the current host."""
    around = environ(tree, folder)
    config = read_config(LaunchRequest(from_job=True), around)
    found = replace(machine(tree.gpus, tree.allowed_cpus), default_interface=tree.default_interface)
    slots = cluster.assumed_slots(config, cluster.own_slots(config, found))
    made = plan.make(config, cluster.resolve(config, slots), found, PROGRAMS)
    host = made.host(config.resources.current_host)
    argv = made.argv
    size = len(argv) - len(config.entry.args)
    head = [item for item in argv[:size] if item != "-u"]
    # Which interpreter runs a program that is no Python is compared below, by running it.
    head = head if head[0] == "python" else head[-1:]
    return Seen(tuple(head), argv[size:], made.cwd, {**around, **made.environ(host, host.ranks[0])})


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Every tree on disk, twice named: for the toolkit and for us the paths must be the same, so it is one folder."""
    out = {}
    for tree in CASES:
        out[tree.name] = tmp_path_factory.mktemp(tree.name)
        tree.write(out[tree.name] / "ml")
    return out


@pytest.fixture(scope="module")
def mine(folders) -> dict[str, Seen | UserError]:
    """What algorun does with every tree. Before the toolkit, which makes entry points executable."""
    out: dict[str, Seen | UserError] = {}
    for tree in CASES:
        try:
            out[tree.name] = under_algorun(tree, folders[tree.name])
        except UserError as error:
            out[tree.name] = error
    return out


@pytest.fixture(scope="module")
def theirs(mine, folders, tmp_path_factory) -> dict[str, dict]:
    """What the toolkit does with every tree; one process for all."""
    answer = tmp_path_factory.mktemp("toolkit") / "answer"
    cases = [{"name": tree.name, "environ": environ(tree, folders[tree.name]), "cpus": tree.cpus} for tree in CASES]
    done = subprocess.run(
        [sys.executable, "-P", str(TOOLKIT), str(answer)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(answer.read_text())


@pytest.fixture(scope="module")
def differing(mine, theirs) -> dict[str, Differing]:
    """By tree. A launcher that refuses shows nothing but the reason."""
    out = {}
    for tree in TREES:
        other, own = theirs[tree.name], mine[tree.name]
        other_facts = (
            {"(refused)": other["refused"]} if "refused" in other else of_toolkit(other, sys.executable).facts()
        )
        own_facts = own.facts() if isinstance(own, Seen) else {"(refused)": str(own)}
        if "(refused)" in {**other_facts, **own_facts}:
            other_facts, own_facts = ({"(refused)": facts.get("(refused)")} for facts in (other_facts, own_facts))
        out[tree.name] = [
            (fact, other_facts.get(fact), own_facts.get(fact))
            for fact in sorted({*other_facts, *own_facts})
            if other_facts.get(fact) != own_facts.get(fact)
        ]
    return out


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_the_user_sees_what_the_toolkit_shows_but_for_wanted_differences(tree, differing):
    unwanted = [
        f"{fact}: toolkit {other!r}, algorun {own!r}"
        for fact, other, own in differing[tree.name]
        if not any(wanted.explains(tree, fact, other, own) for wanted in WANTED)
    ]
    assert not unwanted, "\n".join(unwanted)


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: f"{wanted.facts}: {wanted.why}"[:90])
def test_every_wanted_difference_occurs(wanted, differing):
    """One that does not is a leftover: it would hide a fault."""
    assert any(
        wanted.explains(tree, fact, other, own) for tree in TREES for fact, other, own in differing[tree.name]
    ), wanted.why


@pytest.mark.parametrize("tree", [t for t in TREES if t.name in RUN], ids=lambda tree: tree.name)
def test_a_program_that_is_no_python_runs_in_the_same_interpreter(tree, folders, theirs, tmp_path):
    """Both command lines for real; ours in a folder that the toolkit has not touched."""
    tree.write(tmp_path / "ml")
    config = read_config(LaunchRequest(from_job=True), environ(tree, tmp_path))
    own = subprocess.run(config.entry.argv("python"), cwd=config.entry.cwd, capture_output=True, text=True, check=True)
    other = subprocess.run(
        theirs[tree.name]["argv"], cwd=folders[tree.name] / "ml" / "code", capture_output=True, text=True, check=True
    )
    assert own.stdout == other.stdout
    assert "./" in own.stdout


def test_the_training_environment_is_written_as_the_toolkit_writes_it(mine, theirs):
    """Compact, sorted, ASCII: the table compares it by keys, this by characters."""
    for tree in TREES:
        for environ in (theirs[tree.name].get("environ", {}), mine[tree.name].environ):
            text = environ.get("SM_TRAINING_ENV", "{}")
            assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")), tree.name


@pytest.mark.parametrize(("tree", "toolkit_says", "we_say"), REFUSED, ids=[tree.name for tree, *_ in REFUSED])
def test_what_the_toolkit_cannot_start_is_refused_here_too(tree, toolkit_says, we_say, theirs, mine):
    assert toolkit_says in theirs[tree.name].get("refused", "it ran")
    assert isinstance(mine[tree.name], UserError)
    assert we_say in str(mine[tree.name])


def test_more_hyperparameters_than_one_variable_holds_still_start_a_process(mine):
    """SageMaker allows 100 values of 2,500 characters; Linux one variable of 128 KiB."""
    seen = mine["too-much-for-a-process"]
    done = subprocess.run(["/usr/bin/env", "true", *seen.arguments], env=dict(seen.environ), check=False)
    assert done.returncode == 0
    assert seen.environ["ALGORUN_LEFT_OUT_JOB"] == "SM_HPS SM_USER_ARGS"
    assert seen.environ["ALGORUN_LEFT_OUT_HOST"] == "SM_TRAINING_ENV"


def test_the_table_is_large_enough_to_mean_something():
    assert len({tree.name for tree in TREES}) == len(TREES) >= 40
