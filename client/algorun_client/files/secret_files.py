"""Files and texts that must not leave this machine: private keys, credentials, `.env`. Pure."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

# Names of files that hold secrets whatever their content.
NAMES = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pypirc", ".git-credentials", ".htpasswd"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.ppk", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx"),
    *(
        ".npmrc",
        ".pgpass",
        ".vault-token",
        ".boto",
        ".s3cfg",
        "rclone.conf",
        "*.tfstate",
        "*.tfstate.backup",
        ".my.cnf",
    ),
    *("*.key", "kaggle.json", "client_secret*.json", "service-account*.json", "service_account*.json"),
)
PATHS = (
    *(".aws/credentials", ".aws/config", ".docker/config.json", ".kube/config", ".ssh/*", ".config/gcloud/*"),
    *(".cache/huggingface/token", ".huggingface/token", ".config/gh/hosts.yml", ".azure/*", ".cargo/credentials*"),
)
TEMPLATES = ("*.example", "*.sample", "*.template", "*.dist")  # `.env.example` holds names, not values

# Names of certificates, which are no secret, and of the keys that belong to them: the content tells.
EITHER = ("*.pem", "*.crt", "*.cer")
LARGEST = 4 * 1024 * 1024  # bytes of such a file that are read; a bundle of all authorities has 0.2 MB

KEY_ID = rb"(?<![A-Za-z0-9/+=])(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Za-z0-9/+=])"
KEY_SECRET = rb"(?i:aws_?secret_?access_?key)[\"']?\s{0,8}[=:]\s{0,8}[\"']?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"
PRIVATE_KEY = (
    rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s{1,4}(?:[A-Za-z-]+: [^\n]{0,200}\s{1,4}){0,4}[A-Za-z0-9+/=]{24}"
)
# Tokens whose issuers gave them a beginning by which scanners know them, such as GitHub's secret scanning.
HUGGING_FACE = rb"hf_[A-Za-z0-9]{34}"
GITHUB = rb"gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{82}"
OPENAI = rb"sk-(?:proj-|svcacct-|admin-|None-)[A-Za-z0-9_-]{40,200}|sk-[A-Za-z0-9]{48}"
ANTHROPIC = rb"sk-ant-[a-z0-9]{3,8}-[A-Za-z0-9_-]{80,120}"
OTHERS = (
    rb"glpat-[A-Za-z0-9_-]{20}|npm_[A-Za-z0-9]{36}|pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,500}"
    rb"|xox[abprs]-[A-Za-z0-9-]{24,200}|AIza[A-Za-z0-9_-]{35}"
)
# One pass over the text; the words before `:` below name what was found.
TEXT = re.compile(
    rb"(?P<id>%b)|(?P<secret>%b)|(?P<key>%b)|(?<![A-Za-z0-9_-])(?:(?P<hf>%b)|(?P<github>%b)|(?P<claude>%b)|(?P<openai>%b)"
    rb"|(?P<token>%b))(?![A-Za-z0-9])"
    % (KEY_ID, KEY_SECRET, PRIVATE_KEY, HUGGING_FACE, GITHUB, ANTHROPIC, OPENAI, OTHERS)
)
KINDS = {
    "id": "an AWS access key ID",
    "secret": "an AWS secret access key",
    "key": "a private key",
    "hf": "a token of Hugging Face",
    "github": "a token of GitHub",
    "claude": "a key of Anthropic",
    "openai": "a key of OpenAI",
    "token": "a token of GitLab, npm, PyPI, Slack or Google",
}
EXAMPLE = b"EXAMPLE"  # AWS's documentation has AKIAIOSFODNN7EXAMPLE
LEAST_DISTINCT = 10  # different bytes in a token; hf_xxxxxxxx of a README has fewer
OVERLAP = 1024  # bytes: no secret above is longer


def is_secret_name(name: str) -> bool:
    """True for the relative path of a file that holds secrets by its name."""
    path = name.lower()
    last = path.rsplit("/", 1)[-1]
    if any(fnmatchcase(last, pattern) for pattern in TEMPLATES):
        return False
    return any(fnmatchcase(last, pattern) for pattern in NAMES) or any(
        fnmatchcase(f"/{path}", f"*/{pattern}") for pattern in PATHS
    )


def may_hold_a_key(name: str) -> bool:
    """True for the relative path of a file whose content has to be looked at, wherever it lies."""
    last = name.lower().rsplit("/", 1)[-1]
    return any(fnmatchcase(last, pattern) for pattern in EITHER)


def in_text(content: bytes) -> str:
    """The kind of secret in a text, such as "an AWS access key ID"; "" without one."""
    for found in TEXT.finditer(content):
        if EXAMPLE not in found.group() and len(set(found.group())) >= LEAST_DISTINCT:
            return KINDS[str(found.lastgroup)]
    return ""
