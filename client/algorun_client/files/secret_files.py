"""Files and texts that must not leave this machine: private keys, credentials, `.env`. Pure."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

# Names of files that hold secrets whatever their content.
NAMES = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pypirc", ".git-credentials", ".htpasswd"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.ppk", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx"),
    *("*.key", "kaggle.json", "client_secret*.json", "service-account*.json", "service_account*.json"),
)
PATHS = (".aws/credentials", ".aws/config", ".docker/config.json", ".kube/config", ".ssh/*")
TEMPLATES = ("*.example", "*.sample", "*.template", "*.dist")  # `.env.example` holds names, not values

# Names of certificates, which are no secret, and of the keys that belong to them: the content tells.
EITHER = ("*.pem", "*.crt", "*.cer")
LARGEST = 4 * 1024 * 1024  # bytes of such a file that are read; a bundle of all authorities has 0.2 MB

KEY_ID = rb"(?<![A-Za-z0-9/+=])(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Za-z0-9/+=])"
KEY_SECRET = rb"(?i:aws_?secret_?access_?key)[\"']?\s{0,8}[=:]\s{0,8}[\"']?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"
PRIVATE_KEY = (
    rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s{1,4}(?:[A-Za-z-]+: [^\n]{0,200}\s{1,4}){0,4}[A-Za-z0-9+/=]{24}"
)
# One pass over the text; the words before `:` below name what was found.
TEXT = re.compile(rb"(?P<id>%b)|(?P<secret>%b)|(?P<key>%b)" % (KEY_ID, KEY_SECRET, PRIVATE_KEY))
KINDS = {"id": "an AWS access key ID", "secret": "an AWS secret access key", "key": "a private key"}
EXAMPLE = b"EXAMPLE"  # AWS's documentation has AKIAIOSFODNN7EXAMPLE
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
        if EXAMPLE not in found.group():
            return KINDS[str(found.lastgroup)]
    return ""
