"""Which texts are secrets whatever their name: tokens by the form that their issuers gave them, passwords in URLs and in connection
strings. Pure.

The forms are those that public secret scanners agree on, such as GitHub's secret scanning and gitleaks.
"""

from __future__ import annotations

import json
import re

from .codec import TooDeepError, loads
from .secret_names import HIDDEN, is_secret, without_secrets

KEY_ID = r"(?<![A-Za-z0-9/+=])(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Za-z0-9/+=])"
KEY_SECRET = r"(?i:aws_?secret_?access_?key)[\"']?\s{0,8}[=:]\s{0,8}[\"']?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"
PRIVATE_KEY = (
    r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s{1,4}(?:[A-Za-z-]+: [^\n]{0,200}\s{1,4}){0,4}[A-Za-z0-9+/=]{24}"
)
HUGGING_FACE = r"hf_[A-Za-z0-9]{34}"
GITHUB = r"gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{82}"
OPENAI = r"sk-(?:proj-|svcacct-|admin-|None-)[A-Za-z0-9_-]{40,200}|sk-[A-Za-z0-9]{48}"
ANTHROPIC = r"sk-ant-[a-z0-9]{3,8}-[A-Za-z0-9_-]{80,120}"
OTHERS = (
    r"glpat-[A-Za-z0-9_-]{20}|npm_[A-Za-z0-9]{36}|pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,500}"
    r"|xox[abprs]-[A-Za-z0-9-]{24,200}|AIza[A-Za-z0-9_-]{35}"
)
WEB_TOKEN = r"eyJ[A-Za-z0-9_-]{8,2000}\.eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{16,1000}"
HOOK = r"https://hooks\.slack\.com/services/[A-Za-z0-9/_-]{20,100}"

TOKENS = rf"{KEY_ID}|(?<![A-Za-z0-9_-])(?:{HUGGING_FACE}|{GITHUB}|{ANTHROPIC}|{OPENAI}|{OTHERS}|{WEB_TOKEN}|{HOOK})(?![A-Za-z0-9])"
KEY_BEGIN, KEY_END = r"-----BEGIN (?:[A-Z]+ ){0,4}PRIVATE KEY-----", "-----END"
IN_URL = r"\b([A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s:/?#@\"']{0,100}:)[^\s/\"']{1,200}(?=@)"
# A token in the place of the user: pip hides it too.
USER_IN_URL = r"\b(https?://)[^\s:/?#@\"'*]{1,200}:?(?=@)"
# `?sig=x`, `;AccountKey=x;`, `password=x`, `--password x`, `Authorization: Bearer x`.
PAIR = r"(?<![\w-])((?:--?)?([A-Za-z][\w.-]{1,60}))(=)([^\s&;,\"'<>(){}\[\]]{1,4000})"
OPTION = r"(?<![\w-])(--([A-Za-z][\w-]{1,60}))( +)((?!--)[^\s,;:\"'<>(){}\[\]]{1,4000})"
# `"password": "x"` as JSON and Python write it, also within a text of JSON, and `'--password', 'x'` in a list of words.
QUOTED_NAME = r"(\\{0,7}[\"'])(?:([A-Za-z][\w.-]{0,60})\1 {0,4}: {0,4}|(--[A-Za-z][\w-]{0,60})\1, {0,4})"
# It ends with the quotation mark that has as many backslashes before it; where the text is cut, with the line.
QUOTED_VALUE = r"(?:[bru]?(\\{0,7}[\"']))(?:(?!(?<!\\)\1)[^\n])+"
OTHER_VALUE = r"(?!(?i:true|false|none|null)\b)[^\s,;\"'<>(){}\[\]\\]{1,4000}|\[[^\]\n]{1,4000}\]?|\{[^}\n]{1,4000}\}?"
BEARER = r"(?i)\b((?:bearer|basic) )[A-Za-z0-9._~+/-]{16,4000}=*"
SIGNATURES = frozenset(("sig", "signature", "x-amz-signature", "x-goog-signature", "accountkey", "sharedaccesskey"))


def hidden(text: str) -> str:
    """The text with `***` for each secret that its form or the name before it tells."""
    if len(text) < 4:
        return text
    text = _without_keys(text) if "PRIVATE KEY-----" in text else text
    if "://" in text:
        text = re.sub(USER_IN_URL, rf"\1{HIDDEN}", re.sub(IN_URL, rf"\1{HIDDEN}", text))
    text = _without_quoted(text) if '"' in text or "'" in text else text
    text = re.sub(TOKENS, HIDDEN, text)
    text = re.sub(BEARER, rf"\1{HIDDEN}", text)
    text = re.sub(PAIR, _named, text) if "=" in text else text
    return re.sub(OPTION, _named, text) if "--" in text else text


def _without_keys(text: str) -> str:
    """The text without the lines of private keys; of one that has no end all that follows."""
    parts, at = [], 0
    for found in re.finditer(KEY_BEGIN, text):
        if found.start() >= at:
            parts += [text[at : found.end()], HIDDEN]
            end = text.find(KEY_END, found.end())
            at = len(text) if end < 0 else end
    return "".join([*parts, text[at:]])


def _without_quoted(text: str) -> str:
    """The text without the values of secrets whose names are quoted."""
    parts, at = [], 0
    for name in re.finditer(QUOTED_NAME, text):
        if name.start() < at or not is_secret(name[2] or name[3]):
            continue
        found = re.compile(rf"{QUOTED_VALUE}|{OTHER_VALUE}").match(text, name.end())
        if found:
            begin = found.end(1) if found[1] else found.start()
            parts += [text[at:begin], HIDDEN]
            at = found.end()
    return "".join([*parts, text[at:]])


def _named(found: re.Match[str]) -> str:
    begin, name, between, _ = found.groups()
    return f"{begin}{between}{HIDDEN}" if is_secret(name) or name.lower() in SIGNATURES else found[0]


def hidden_json(value: object, name: str = "") -> object:
    """A value of JSON with `***` for its secrets: below a secret's name everything, else what `hidden` and command lines show. A
    text that holds a list or an object, as hyperparameters do, is looked into; where it is nested too deep for that, it is
    `***` as a whole."""
    if name and is_secret(name) and value is not None:
        return HIDDEN
    if isinstance(value, dict):
        return {key: hidden_json(each, str(key)) for key, each in value.items()}
    if isinstance(value, list):
        if all(isinstance(each, str) for each in value):
            return [hidden(word) for word in without_secrets(value)]
        return [hidden_json(each) for each in value]
    if not isinstance(value, str):
        return value
    if value[:1] in ("[", "{"):
        try:
            inside = loads(value)
            clean = hidden_json(inside)
        except (TooDeepError, RecursionError):  # the latter: texts within texts, each of them deep
            return HIDDEN
        except ValueError:
            return hidden(value)
        return value if clean == inside else json.dumps(clean)
    return hidden(value)
