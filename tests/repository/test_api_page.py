"""docs/api.md is what its program prints, each public name is explained, and each key's example is one that `submit` reads."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from algorun_client.submit.read import job_file, make_spec
from algorun_client.submit.read.layers import TASK_KEYS, TOP_KEYS, Layer

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "docs" / "api_page.py"
SPEC = importlib.util.spec_from_file_location("api_page", PROGRAM)
assert SPEC is not None
assert SPEC.loader is not None
api_page = sys.modules["api_page"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(api_page)
NEEDS = {"max_wait": "spot = true\n"}  # what else a file needs for this key


def test_the_page_is_what_the_program_prints():
    printed = subprocess.run(
        [sys.executable, "-I", str(PROGRAM)], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert (ROOT / "docs" / "api.md").read_text() == printed, "python docs/api_page.py > docs/api.md"


def functions() -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """Name, function and docstring of all that the page shows; of a class's constructor the docstring of the class."""
    for name in api_page.MODULES:
        module = api_page.read_module(name)
        for public in module.public:
            if public == api_page.VERSION:
                continue
            where, found = api_page.definition(module, public)
            places = [(where, found)]
            if returned := api_page.RETURNED.get(public):
                places.append(api_page.definition(where, returned))
            for _, place in places:
                if isinstance(place, ast.FunctionDef):
                    yield f"{name}.{public}", place, ast.get_docstring(place) or ""
                    continue
                makes = [each for each in place.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
                if makes and place.name not in api_page.RETURNED.values():
                    yield f"{name}.{place.name}", makes[0], ast.get_docstring(place) or ""
                for each in api_page.members(place.name, place):
                    yield f"{name}.{place.name}.{each.name}", each, ast.get_docstring(each) or ""


@pytest.mark.parametrize(
    ("function", "text"), [pytest.param(function, text, id=name) for name, function, text in functions()]
)
def test_each_argument_of_a_public_name_is_explained(function, text):
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, [given.vararg, given.kwarg])]
    explained = {
        word
        for names in re.findall(r"^ *([\w, ]+): ", text.partition("Args:\n")[2], flags=re.MULTILINE)
        for word in names.split(", ")
    }
    assert text
    assert {each.arg for each in arguments} - {"self"} <= explained


def test_each_public_function_says_which_ranks_call_it():
    silent = [name for name, _, text in functions() if name.count(".") < 3 and not re.search(r"\brank|\bprocess", text)]
    assert not silent


def test_the_page_has_each_key_of_the_job_file():
    assert set(api_page.keys()) == set(api_page.EXAMPLES) == {*TOP_KEYS, *TASK_KEYS, job_file.SWEEP, job_file.TUNE}


@pytest.mark.parametrize("key", api_page.EXAMPLES)
def test_the_example_of_each_key_is_read(key):
    line = f"{key} = {api_page.EXAMPLES[key]}\n"
    program = "" if key in ("run", "shell", "module") else 'run = ["train.py", "--lr", "0.1"]\n'
    for place in api_page.place(key).split(", "):
        text = NEEDS.get(key, "")
        text += f"{line}[task.a]\n{program}" if place == "top" else f"[task.a]\n{program}{line}"
        file = job_file.parse(text.encode(), "algorun.toml", "/work/images")
        made = make_spec.make(file, Layer(), (), folder="/work/images", environ={"WANDB_PROJECT": "x"})
        assert made.task == "a"
