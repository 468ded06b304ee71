"""What `algorun -h` and the help of each command say."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stdout

import pytest

from algorun import cli
from algorun.commands import overview
from algorun.commands.command_line import parse
from algorun.common.errors import UserError

PROGRAM = {
    "--engine NAME": "how ranks are started: native, torchrun, mpirun, ray",
    "-j HxS": "number of hosts x ranks on each host, such as 2x4",
    "--slots N": "number of ranks on each host",
    "--restarts N": "restart a failed job up to N times",
    "--per-gpu": "one rank per GPU of each host",
    "--per-host": "one rank per host: WORLD_SIZE is the number of hosts",
    "--share-nothing": "run the program once per host, without ranks",
    "--cwd DIR": "start the program in this folder",
    "-m MODULE": "run a module, as python -m does",
}
HELP = {
    "run": PROGRAM,
    "plan": {
        "--json": "print JSON",
        "--hosts N": "plan for N hosts, algo-1 to algo-N, instead of the job's hosts",
        **PROGRAM,
    },
    "simulate": {
        "--hosts N": "simulate N hosts, algo-1 to algo-N; -j 2x4 is --hosts 2 --slots 4",
        "--channel NAME=DIR": "use folder DIR as input channel NAME; may be repeated",
        "--out DIR": "folder for the hosts' /opt/ml trees (default: algorun-simulate)",
        "--resume": "keep the previous simulation's checkpoints, to resume from them",
        **PROGRAM,
    },
    "doctor": {
        "Check this machine, or with --aws an account; show what would make a job fail.": "",
        "--json": "print JSON",
        "--aws": "look at the AWS account instead; takes the options of `submit` (doctor --aws -h)",
    },
}


def squeezed(text: str) -> str:
    return "".join(text.split())


def help_of(*words: str) -> str:
    """The text of `algorun WORDS -h` without blanks: argparse breaks lines at blanks and hyphens."""
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.raises(SystemExit) as end:
        cli.main([*words, "-h"])
    assert end.value.code == 0
    return squeezed(shown.getvalue())


@pytest.mark.parametrize("command", HELP)
def test_a_command_explains_each_of_its_options(command):
    text = help_of(command)
    for option, meaning in HELP[command].items():
        assert squeezed(f"{option} {meaning}") in text


def test_the_help_of_algorun_has_three_groups():
    """The same words as each command's own help."""
    text = help_of()
    places = [text.index(squeezed(head)) for head in ("In the container:", "At home:", "To SageMaker and back")]
    assert places == sorted(places)
    for line in overview.TEXT.splitlines():
        if line.startswith("  "):
            name, meaning = line.split(maxsplit=1)
            if name not in overview.CLIENT:
                assert squeezed(meaning) in help_of(name)
    names = [line.split()[0] for line in overview.TEXT.splitlines() if line.startswith("  ")]
    assert tuple(names[-len(overview.CLIENT) :]) == overview.CLIENT


@pytest.mark.parametrize("missing", ["algorun_client", "boto3"])
def test_without_the_client_installed_the_launcher_says_what_to_install(monkeypatch, missing, capsys):
    class Missing:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == missing:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    for name in [name for name in sys.modules if name.split(".")[0] in ("algorun_client", "boto3")]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(["ls", "--region", "eu-west-1"]) == 64
    ours = missing == "algorun_client"
    name = "algorun-client" if ours else missing
    what = "./client, in the clone of algorun that this one is from" if ours else "boto3 'jinja2>=3.1' 'rich>=13'"
    fix = f"fix: {sys.executable} -m pip install {what}"
    assert capsys.readouterr().err == f"algorun: error: algorun ls: {name} is not installed; {fix}\n"


def test_the_help_and_a_plan_do_not_import_the_client():
    code = "import sys; from algorun import cli\ntry: cli.main(['-h'])\nexcept SystemExit: pass\n" + (
        "cli.main(['plan', '-j', '2x1', 'true'])\n"
        "assert not [n for n in sys.modules if n.split('.')[0] in ('algorun_client', 'boto3', 'rich')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_the_help_of_algorun_names_each_command_and_where_to_read_on():
    text = help_of()
    for command in ("train", "run", "plan", "simulate", "doctor", "metric-definitions"):
        assert command in text
    assert squeezed("algorun COMMAND -h shows the options of a command.") in text


COMMANDS = [line.split()[0] for line in overview.TEXT.splitlines() if line.startswith("  ")]


@pytest.mark.parametrize("command", [*COMMANDS, "doctor --aws", "state ls", "state clean"])
def test_a_usage_line_begins_with_the_command_as_it_is_typed(command):
    usage = "algorun doctor" if command == "doctor --aws" else f"algorun {command}"
    assert help_of(*command.split()).startswith(squeezed(f"usage: {usage} [-h]"))


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("run --nproc-per-node 4 train.py", "--slots N in place of torchrun's --nproc-per-node"),
        ("run --nproc_per_node=4 train.py", "--slots N in place of torchrun's --nproc-per-node"),
        ("simulate --nnodes 2 train.py", "--hosts N in place of torchrun's --nnodes"),
        ("run --nnodes 2 train.py", "leave out torchrun's --nnodes: a job knows its hosts"),
        ("plan --rdzv-endpoint=a:1 train.py", "leave out torchrun's --rdzv-endpoint: a job knows its hosts"),
        ("simulate --host 2 train.py", "algorun simulate -h"),
        ("doctor --nnodes 2", "algorun doctor -h"),
        ("--nnodes", "algorun -h"),
    ],
)
def test_an_unknown_option_says_where_to_look_and_one_of_torchrun_what_it_is_called_here(line, fix):
    with pytest.raises(UserError, match="unrecognized arguments: --") as error:
        parse(line.split())
    assert str(error.value).endswith(f"fix: {fix}")


def test_a_wrong_value_names_the_help_of_its_command():
    with pytest.raises(UserError) as error:
        parse(["completion", "csh"])
    assert str(error.value).endswith("fix: algorun completion -h")
