"""Which names of options and variables are those of secrets. Pure."""

from __future__ import annotations

SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "ACCESS_KEY", "API_KEY", "PRIVATE_KEY")


def is_secret(name: str) -> bool:
    """True if a variable or option of this name holds a secret, which no plan, failure or log line of the launcher may show.

    "tokenizer" is not a secret.
    """
    plain = name.upper().replace("-", "_").replace("TOKENIZ", "")
    return any(word in plain for word in SECRET_WORDS)
