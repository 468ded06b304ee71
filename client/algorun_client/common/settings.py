"""The environment variables of the client. The launcher's are in `algorun.job.settings`, which says how one is declared."""

from __future__ import annotations

from algorun.common.errors import UserError
from algorun.job.settings import Setting

LONGEST_GRACE_S = 3600.0


def _text(name: str, text: str) -> str:
    return text


def _bucket(name: str, text: str) -> str:
    return text.removeprefix("s3://").rstrip("/")


def _grace_s(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LONGEST_GRACE_S:
        raise UserError(
            name, f"{text!r} is not a number of seconds", allowed=f"0 to {LONGEST_GRACE_S:g}", fix=f"{name}=15"
        )
    return value


BUCKET = Setting(
    "ALGORUN_BUCKET", "", _bucket, "a bucket",
    "Bucket of tasks that name none. Unset: `sagemaker-REGION-ACCOUNT`, on this machine `local`",
)  # fmt: skip
ROLE = Setting(
    "ALGORUN_ROLE", "", _text, "a role's name or ARN",
    "Role of jobs that name none. Unset: the role that the caller has assumed",
)  # fmt: skip
LOCAL_ROOT = Setting(
    "ALGORUN_LOCAL_ROOT", "", _text, "a folder", "Where `--where local` keeps jobs and buckets. Unset: `~/.algorun`"
)
FOLLOW_GRACE_S = Setting(
    "ALGORUN_FOLLOW_GRACE_S", 15.0, _grace_s, f"0 to {LONGEST_GRACE_S:g}",
    "After a job's end on AWS: time in which its last lines may still come", "s",
)  # fmt: skip
REQUEST_ID = Setting(
    "ALGORUN_REQUEST_ID",
    "",
    _text,
    "a checksum",
    "The request that made a job; the client sets it, to know its own jobs",
)
GROUP = "The client (algorun submit and the commands after it)"
SETTINGS: tuple[Setting[object], ...] = (BUCKET, ROLE, LOCAL_ROOT, FOLLOW_GRACE_S, REQUEST_ID)
