"""Secrets of the job in a failure's texts: hidden, and nothing else is."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from algorun.common.fast_dataclasses import replace
from algorun.common.secret_names import is_secret
from algorun.control.failures.failure import Failure
from algorun.job.hyperparameter_groups import Hyperparameters
from algorun.job.request import LaunchRequest
from algorun.outcome import redaction
from tests.conftest import job

KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\n-----END KEY-----"


def hidden(text: str, *args: str, hyperparameters: dict | None = None, **environ: str) -> str:
    config = job("mpi", **environ)
    given = replace(config.input, hyperparameters=Hyperparameters.parse(hyperparameters or {}), request=LaunchRequest())
    config = replace(config, entry=replace(config.entry, args=args), input=given)
    found = Failure("exit", "algo-1", 2, text, 0, text, text, user_text=text)
    clean = redaction.failure(found, config)
    assert {clean.message, clean.traceback, clean.hint, clean.user_text} == {clean.message}
    assert redaction.text(text, config) == clean.message
    return clean.message


@pytest.mark.parametrize(
    ("args", "before", "after"),
    [
        (
            ("--db_password", "hunter2", "--lr", "1"),
            "train.py: error: argument --db_password: invalid int value: 'hunter2'",
            "train.py: error: argument --db_password: invalid int value: '***'",
        ),
        (
            ("--db_password", "hunter2"),
            "train.py: error: unrecognized arguments: --db_password hunter2",
            "train.py: error: unrecognized arguments: --db_password ***",
        ),
        (("--db-password=hunter2",), "connection to postgres://me:hunter2@db/x failed", "connection to postgres://me:***@db/x failed"),
        (("--password", "p@ss/w0rd"), "postgres://me:p%40ss%2Fw0rd@db", "postgres://me:***@db"),
        (("--password", "it\\1"), "no user 'it\\\\1'", "no user '***'"),
        # Short and common values only behind their name: they would take half of the text along.
        (
            ("--pin_token", "1"),
            "rank 1 on algo-1, exit 1: argument --pin_token: invalid choice: '1'",
            "rank 1 on algo-1, exit 1: argument --pin_token: invalid choice: '***'",
        ),
        (("--use_auth_token", "True"), "True is not False\nuse-auth-token=True", "True is not False\nuse-auth-token=***"),
        (("--max_token", "2048"), "a batch of 2048 has 2048 rows", "a batch of 2048 has 2048 rows"),
        (("--pin_token", "12345678"), "pin 12345678", "pin ***"),
        # An option without a value is followed by another option.
        (("--with-token", "--verbose"), "unrecognized arguments: --verbose", "unrecognized arguments: --verbose"),
        (("--tokenizer", "bert-base-uncased"), "no folder bert-base-uncased", "no folder bert-base-uncased"),
        (("--user", "somebody"), "no user somebody", "no user somebody"),
        # Within another word only where it is long.
        (("--password", "test"), "pytest test.py in testing", "pytest ***.py in testing"),
    ],
)  # fmt: skip
def test_values_of_secret_options_are_hidden(args, before, after):
    assert hidden(before, *args) == after


def test_values_of_secret_variables_and_hyperparameters_are_hidden():
    given = {"api_key": '"abcdefgh"', "db": json.dumps({"host": "db.local", "password": "hunter2"}), "lr": "0.1"}
    text = "db.local refused hunter2 with abcdefgh at 0.1"
    assert hidden(text, hyperparameters=given) == "db.local refused *** with *** at 0.1"
    assert hidden("no access for wJalrXUtnFEMI", AWS_SECRET_ACCESS_KEY="wJalrXUtnFEMI") == "no access for ***"
    assert hidden("credentials of 7 tokens", hyperparameters={"secrets": '["token-one", "token-two"]'}) == (
        "credentials of 7 tokens"
    )


@pytest.mark.parametrize("write", [json.dumps, str], ids=["json", "python"])
def test_secrets_in_an_object_that_a_text_holds_are_hidden(write):
    held = write({"user": "me", "password": "hunter2", "more": [{"api_key": "abcdefgh"}]})
    text = "db.local refused hunter2 of me with abcdefgh"
    assert hidden(text, DB_CONF=held) == "db.local refused *** of me with ***"
    assert hidden(text, "--db", held) == "db.local refused *** of me with ***"
    assert hidden(text, hyperparameters={"db": held}) == "db.local refused *** of me with ***"
    assert hidden(text, hyperparameters={"db": json.dumps(held)}) == "db.local refused *** of me with ***"


@pytest.mark.filterwarnings("error")
def test_an_escape_that_python_warns_of_hides_no_secret():
    assert hidden("refused hunter2", DB_CONF="{'user': '\\d', 'password': 'hunter2'}") == "refused ***"


@pytest.mark.parametrize("text", ["{", "[" * 5000, "{[]: 1}", "[" * 150 + "]" * 150, "{'a': f()}"])
def test_a_text_that_only_begins_as_an_object_is_passed_over(text):
    assert hidden("db.local refused", "--db", text, DB_CONF=text) == "db.local refused"


def test_a_key_of_many_lines_is_hidden_in_any_form():
    for shown in (KEY, repr(KEY), json.dumps(KEY), "bad line MIIEvQIBADANBgkqhkiG9w0BAQ"):
        assert "MIIEvQIBADAN" not in hidden(f"cannot read {shown}", PRIVATE_KEY=KEY)


@pytest.mark.parametrize("write", [str, json.dumps, repr, lambda value: quote(value, safe="")])
def test_a_secret_is_hidden_whole_as_json_python_and_an_address_write_it(write):
    secret = "pä\"ss\\w'rd/12"
    shown = hidden(f"<{write(secret)}>", "--password", secret)
    assert shown.strip("<>").strip("\"'") == "***"


@given(st.text(min_size=8, max_size=40), st.text(max_size=60), st.text(max_size=60))
def test_a_long_secret_never_stays(secret, before, after):
    assume(secret.strip() and "*" not in secret)
    assert secret not in hidden(f"{before}{secret}{after}", "--password", secret) or secret.startswith("--")


@pytest.mark.parametrize(
    ("name", "secret"), [("HF_TOKEN", True), ("--api-key", True), ("TOKENIZERS_PARALLELISM", False)]
)
def test_a_tokenizer_is_no_secret(name, secret):
    assert is_secret(name) == secret
