"""Files and texts that must not leave this machine: private keys, credentials, `.env`."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

from algorun.common.secret_values import (
    ANTHROPIC,
    GITHUB,
    HUGGING_FACE,
    KEY_ID,
    KEY_SECRET,
    OPENAI,
    OTHERS,
    PRIVATE_KEY,
)

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

# One pass over the text; the words before `:` below name what was found.
TEXT = re.compile(
    (
        f"(?P<id>{KEY_ID})|(?P<secret>{KEY_SECRET})|(?P<key>{PRIVATE_KEY})|(?<![A-Za-z0-9_-])(?:(?P<hf>{HUGGING_FACE})"
        f"|(?P<github>{GITHUB})|(?P<claude>{ANTHROPIC})|(?P<openai>{OPENAI})|(?P<token>{OTHERS}))(?![A-Za-z0-9])"
    ).encode()
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


def holds_a_key(path: Path) -> bool:
    """True for a private key in a file whose name says no more than that it is a key or a certificate."""
    if not any(fnmatchcase(path.name.lower(), pattern) for pattern in EITHER):
        return False
    try:
        with open(path, "rb") as file:
            return bool(in_text(file.read(LARGEST)))
    except OSError:  # it cannot be hashed either, which says why
        return False


def in_text(content: bytes) -> str:
    """The kind of secret in a text, such as "an AWS access key ID"; "" without one."""
    for found in TEXT.finditer(content):
        if EXAMPLE not in found.group() and len(set(found.group())) >= LEAST_DISTINCT:
            return KINDS[str(found.lastgroup)]
    return ""
