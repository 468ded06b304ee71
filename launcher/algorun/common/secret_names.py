"""Which names of options and variables are those of secrets, by their words: `OPENAI_APIKEY`, `dbPass`, `--auth-token`. Pure.

`max_new_tokens` and `pad_token_id` are none. Where a word leaves it open, a name counts as that of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

HIDDEN = "***"
# Each of these is a secret wherever it stands in a word: `PGPASSWORD`, `clientsecret`.
INSIDE = ("password", "passwd", "passphrase", "passcode", "secret", "credential", "apikey", "accesskey", "privatekey")
# Each of these as a word of its own.
WORDS = frozenset(("bearer", "creds", "jwt", "authorization", "sshpass", "connectionstring", "connstr", "webhook"))
# As the last word.
ENDS = frozenset(("pass", "pwd", "pat", "cookie", "auth"))
# Words before `pass`, `auth` and the like with which they mean something else: forward_pass, use_auth.
OTHERWISE = frozenset(
    ("forward", "backward", "single", "double", "multi", "one", "two", "first", "second", "max", "num", "n", "per", "low",
     "high", "band", "all", "test", "by", "full", "use", "enable", "disable", "require", "requires", "no", "with", "old")
)  # fmt: skip
# What a key opens. Other keys sort, name or look something up: image_key, partition_key, key_dim, public_key.
KEYS = frozenset(
    ("api", "access", "secret", "private", "auth", "account", "storage", "shared", "master", "encryption", "encrypt",
     "decryption", "decrypt", "signing", "sign", "deploy", "deployment", "service", "license", "licence", "session", "hmac",
     "aes", "fernet", "rsa", "ecdsa", "ed25519", "dsa", "ssh", "gpg", "pgp", "ssl", "tls", "app", "application", "admin",
     "subscription", "ingest", "ingestion", "vault", "consumer", "client", "server", "project", "user", "team", "org")
)  # fmt: skip
# Services whose key is an API key: WANDB_KEY.
SERVICES = frozenset(
    ("wandb", "openai", "anthropic", "claude", "hf", "huggingface", "azure", "aws", "gcp", "google", "gemini", "datadog", "dd",
     "comet", "neptune", "mlflow", "clearml", "github", "gitlab", "slack", "stripe", "twilio", "sendgrid", "mailgun", "kaggle",
     "cohere", "mistral", "replicate", "groq", "pinecone", "qdrant", "weaviate", "langchain", "langsmith", "ngc", "nvidia",
     "deepseek", "together", "fireworks", "perplexity", "elevenlabs", "serpapi", "tavily", "airtable", "notion", "sentry",
     "algolia", "cosmos", "cosmosdb", "elastic", "opensearch", "newrelic", "lightning", "modal", "runpod", "openrouter")
)  # fmt: skip
# Words beside `token` with which it is a piece of text, a number of them, or a switch.
TEXT_BEFORE = frozenset(
    ("pad", "padding", "eos", "bos", "unk", "unknown", "sep", "separator", "cls", "mask", "special", "image", "img", "video",
     "audio", "vision", "start", "end", "stop", "begin", "next", "prev", "previous", "first", "last", "max", "min", "num", "n",
     "per", "new", "prompt", "class", "text", "word", "sub", "input", "output", "context", "boi", "eoi", "boa", "eoa", "pixel",
     "patch", "decoder", "encoder", "forced", "suppress", "answer", "think", "thinking", "reasoning", "tool", "query", "doc",
     "document", "mem", "memory", "register", "distillation", "timestamp", "time", "ctc", "blank", "sentence", "placeholder",
     "ignore", "label", "target", "source", "src", "tgt", "byte", "char", "latent", "action", "state", "total", "by", "multi",
     "single", "draft", "speculative", "visual", "speech", "speaker", "row", "column", "newline", "eod", "eot", "additional")
)  # fmt: skip
TEXT_AFTER = frozenset(
    ("id", "ids", "index", "indices", "offset", "fraction", "idx", "type", "types", "count", "counts", "limit", "length", "len",
     "dim", "dims", "size",
     "dropout", "drop", "level", "budget", "embedding", "embeddings", "embed", "embeds", "classification", "ratio", "rate",
     "mask", "shift", "weight", "loss", "batch", "per", "num", "accuracy", "parallelism", "merging", "pruning", "pooling",
     "mixing", "shuffle", "labeling", "labelling", "labels", "choice", "dispatcher", "dispatch", "capacity", "group", "strategy",
     "padding", "healing", "usage", "cost", "price", "throughput", "buffer", "expiry", "ttl", "processor")
)  # fmt: skip
# Who gives tokens in the plural that are secrets: API_TOKENS. Others are counted.
GIVERS = KEYS | SERVICES | {"bot", "refresh", "hub", "bearer", "id"}
# A name that ends with one of these tells where a secret is, or of what kind, and not what it is.
ABOUT = frozenset(
    ("file", "path", "dir", "folder", "name", "arn", "url", "uri", "endpoint", "provider", "scope", "required", "enabled",
     "prompt", "policy", "header")
)  # fmt: skip
PART = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+"


def is_secret(name: str) -> bool:
    """True if a variable or option of this name holds a secret, which no plan, failure or log line of the launcher may show."""
    words = [word.lower() for word in re.findall(PART, name)]
    while words and words[-1].isdigit():
        words.pop()
    if not words or words[-1] in ABOUT or name in ("PWD", "OLDPWD"):
        return False
    if any(inside in word for word in words for inside in INSIDE) or not WORDS.isdisjoint(words):
        return True
    if "".join(words[-2:]) in WORDS or (words[-1] in ENDS and (len(words) == 1 or words[-2] not in OTHERWISE)):
        return not (len(words) == 1 and words[0] in ("auth", "pat"))
    return any(_is_key(words, at) or _is_token(words, at) for at in range(len(words)))


def _is_key(words: Sequence[str], at: int) -> bool:
    if words[at] not in ("key", "keys"):
        return False
    return at > 0 and words[at - 1] in KEYS | SERVICES


def _is_token(words: Sequence[str], at: int) -> bool:
    word, before, after = words[at], words[at - 1 : at], words[at + 1 : at + 2]
    if word == "tokens":
        return bool(before) and before[0] in GIVERS
    if not word.endswith("token") or (before and before[0] in TEXT_BEFORE):
        return False
    if after and (after[0] in TEXT_AFTER or after[0].isdigit()):
        return False
    return word == "token" or word.removesuffix("token") in GIVERS | {"access", "git", "gh"}


def secrets_of(words: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Place, name and value of the secrets of a command line: `--password x` (the place of x), `--password=x`, `password=x`."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not is_secret(name):
            continue
        if equals:
            yield at, name.lstrip("-"), value
        elif name.startswith("-") and at + 1 < len(words) and not words[at + 1].startswith("--"):
            yield at + 1, name.lstrip("-"), words[at + 1]


def without_secrets(words: Sequence[str]) -> list[str]:
    """A command line for showing, with `***` for the values of options and words with a secret's name."""
    shown = list(words)
    for at, _, value in secrets_of(words):
        shown[at] = shown[at].removesuffix(value) + HIDDEN
    return shown
