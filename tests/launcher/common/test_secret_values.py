"""Secrets by their form, in texts and in JSON; and texts that must stay as they are."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.secret_values import hidden, hidden_json

DRAWN = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6"
TOKENS = (
    f"hf_{DRAWN[:34]}",
    f"ghp_{DRAWN[:36]}",
    f"sk-{DRAWN[:48]}",
    f"sk-proj-{DRAWN}",
    f"glpat-{DRAWN[:20]}",
    f"npm_{DRAWN[:36]}",
    f"AIza{DRAWN[:35]}",
    "AKIA" + "ABCDEFGH23456723",
    f"xoxb-{DRAWN[:30]}",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{DRAWN[:43]}",
    f"https://hooks.slack.com/services/{DRAWN[:40]}",
)


@pytest.mark.parametrize("levels", [600, 5_000, 100_000])
def test_a_text_that_is_nested_too_deep_to_be_looked_into_is_not_shown(levels):
    shown = hidden_json('{"password": "hunter2", "a": ' + "[" * levels + "]" * levels + "}")
    assert "hunter2" not in str(shown)
    assert shown == "***"


@pytest.mark.parametrize("token", TOKENS, ids=[token[:6] for token in TOKENS])
def test_a_token_is_a_secret_wherever_it_stands(token):
    assert hidden(token) == "***"
    assert token not in hidden(f"401 for {token}, see log")
    assert token not in hidden(f'{{"header": "x {token}"}}')


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://me:hunter2@db.local/x", "postgres://me:***@db.local/x"),
        ("https://user:p@ss@host:443/a?b=c", "https://user:***@host:443/a?b=c"),
        ("pip install --index-url https://u:pw@pypi.local/simple torch", "pip install --index-url https://u:***@pypi.local/simple torch"),
        ("Server=db;Uid=me;Pwd=hunter2;", "Server=db;Uid=me;Pwd=***;"),
        ("DefaultEndpointsProtocol=https;AccountKey=abc/def==;X=1", "DefaultEndpointsProtocol=https;AccountKey=***;X=1"),
        ("host=db password=hunter2 user=me", "host=db password=*** user=me"),
        ("https://x.blob/y?sv=1&sig=abc%3D&se=2", "https://x.blob/y?sv=1&sig=***&se=2"),
        ("GET /?X-Amz-Signature=abc&n=1", "GET /?X-Amz-Signature=***&n=1"),
        ("exec train.py --api-key abc --lr 1", "exec train.py --api-key *** --lr 1"),
        ("export DB_PASS=abc; python train.py", "export DB_PASS=***; python train.py"),
        ("https://x0y1z2@github.com/me/x.git", "https://***@github.com/me/x.git"),
        ("--extra-index-url https://x0y1z2:@pypi.local/simple", "--extra-index-url https://***@pypi.local/simple"),
        ("bad config {'user': 'me', 'password': \"it's\", 'lr': 1}", "bad config {'user': 'me', 'password': \"***\", 'lr': 1}"),
        ('{"pin_token": 1234, "secrets": ["a", "b"], "n": 1}', '{"pin_token": ***, "secrets": ***, "n": 1}'),
        ("{'password': b'abc', 'creds': {'a': 'b'}}", "{'password': b'***', 'creds': ***}"),
        ('cut off: {"password": "abc', 'cut off: {"password": "***'),
        ("Command '['psql', '--password', 'abc', '-v']' returned", "Command '['psql', '--password', '***', '-v']' returned"),
        ("Authorization: Bearer abcdefghijklmnop1234", "Authorization: Bearer ***"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----",
        ),
    ],
)  # fmt: skip
def test_passwords_in_urls_connection_strings_and_command_lines(text, shown):
    assert hidden(text) == shown
    assert hidden(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/key/model.tar.gz?versionId=3",
        "http://localhost:8888/lab",
        "tcp://10.0.0.1:29500",
        "max_new_tokens=128 pad_token_id=0",
        "RuntimeError: shape '[2, 3]' is invalid for input of size 5",
        "--max_new_tokens 128 --tokenizer bert",
        "argument --db_password: invalid int value",
        "unrecognized arguments: --with-token --verbose",
        "sk-learn 1.5, sketch, hf_transfer, ghp_not_a_token",
        "user@host.example.com:22",
        "2026-11-25T10:00:00Z basic block 12",
        "key=value",
        "KeyError: 'password'",
        "{'pad_token': '<pad>', 'max_new_tokens': 5, 'use_auth_token': None, 'token': True, 'password': ''}",
        "git+ssh://git@github.com/me/x.git",
        "https://pages.local/@me/x",
    ],
)
def test_other_texts_stay(text):
    assert hidden(text) == text


@given(st.text(min_size=1), st.integers(0, 2))
def test_a_secret_in_json_is_hidden_however_often_its_text_is_quoted(secret, times):
    """As `hidden_json` does it, which reads the text."""
    texts = []
    for value in (secret, "***"):
        text = json.dumps({"a": "b", "db": {"password": value, "port": 1}})
        for _ in range(times):
            text = json.dumps(text)
        texts.append(text)
    shown = hidden(texts[0])
    assert shown.startswith(texts[1].partition("***")[0] + "***")
    if not secret.endswith("\\"):  # else what follows is hidden too
        assert shown == texts[1]


def test_json_is_hidden_by_name_by_form_and_in_command_lines():
    given = {
        "Environment": {"DB_PASS": "x", "LR": "1", "DSN": "postgres://a:b@c"},
        "HyperParameters": {"api_key": '"k"', "args": json.dumps(["--password", "x", "--lr", "1"]), "max_new_tokens": "5"},
        "AppSpecification": {"ContainerArguments": ["--token", "x", "--n", "2", "pg://a:b@c"]},
        "number": 3,
        "nothing": None,
    }  # fmt: skip
    assert hidden_json(given) == {
        "Environment": {"DB_PASS": "***", "LR": "1", "DSN": "postgres://a:***@c"},
        "HyperParameters": {"api_key": "***", "args": json.dumps(["--password", "***", "--lr", "1"]), "max_new_tokens": "5"},
        "AppSpecification": {"ContainerArguments": ["--token", "***", "--n", "2", "pg://a:***@c"]},
        "number": 3,
        "nothing": None,
    }  # fmt: skip


def test_text_without_secrets_keeps_its_json_as_written():
    text = '{"a":1,  "b": [1,2]}'
    assert hidden_json(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "=" * 200_000,
        "a" * 200_000,
        "://" * 60_000,
        "--a " * 50_000,
        "eyJ" * 60_000,
        "-----BEGIN PRIVATE KEY-----" * 5000,
        "a:" * 90_000,
        '"password":' * 20_000,
        '"password":"' * 20_000,
        "\\" * 200_000,
        '"password":"' + "\\" * 200_000,
        "https://" * 30_000,
    ],
)
def test_any_long_text_takes_little_time(text):
    begin = time.process_time()
    hidden(text)
    assert time.process_time() - begin < 5
