"""The text of a dry run."""

from __future__ import annotations

import json

import pytest

from algorun_client.submit import dry_run
from tests.client.submit.assemble.test_assemble import EXAMPLES, GOLDEN
from tests.client.submit.specs import request, spec


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_text_says_everything_that_is_sent(name):
    made = EXAMPLES[name]()
    text = dry_run.as_text(made)

    def leaves(value):
        if isinstance(value, dict):
            return [leaf for item in value.values() for leaf in leaves(item)]
        if isinstance(value, list):
            return [leaf for item in value for leaf in leaves(item)]
        return [value]

    assert [
        leaf
        for leaf in leaves(dict(made.create))
        if isinstance(leaf, str) and leaf not in text and json.dumps(leaf) not in text
    ] == []
    assert max(map(len, text.splitlines())) < 400


def test_the_text_is_as_its_golden_file():
    text = dry_run.as_text(EXAMPLES["everything"]()) + "\n\n" + dry_run.as_text(EXAMPLES["unknown"]()) + "\n"
    file = GOLDEN / "dry-run.txt"
    assert text == file.read_text(), f"if this is meant: write it to {file}"


def test_json_is_the_request():
    made = EXAMPLES["one-line"]()
    assert json.loads(dry_run.as_json(made))["create"] == made.create
    assert "\n" not in dry_run.as_json(made)


def test_secrets_are_for_json_alone():
    made = request(
        spec("train.py", env=["HF_TOKEN=hf_0123456789", "A=plain-value"], hyperparameters=["api_key=k-0123456789"])
    )
    text = dry_run.as_text(made)
    assert "plain-value" in text
    assert "0123456789" not in text
    assert "hf_0123456789" in dry_run.as_json(made)
