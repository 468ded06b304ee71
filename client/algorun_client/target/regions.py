"""Is it a region? A name with a typing error has no address, and boto3 looks for that address for half a minute."""

from __future__ import annotations

import os
from difflib import get_close_matches

from algorun.common.errors import UserError

from .boto_types import Session

ENDPOINT = "AWS_ENDPOINT_URL"  # of servers that are not AWS's: their regions may have any name


def check_region(session: Session, where: str = "--region") -> None:
    """Raises UserError if boto3 does not know the session's region. Makes no call. `session`: boto3's."""
    region = str(session.region_name)
    if any(name.startswith(ENDPOINT) and value for name, value in os.environ.items()):
        return
    partitions = session.get_available_partitions()
    known = {each for partition in partitions for each in session.get_available_regions("sagemaker", partition)}
    if region in known:
        return
    near = sorted(get_close_matches(region.lower(), known, n=3))
    raise UserError(
        where,
        f"{region!r} is not a region of SageMaker",
        allowed="a region that boto3 knows",
        fix=f"did you mean {' or '.join(near)}?"
        if near
        else "such as us-east-1; for a new region: pip install -U boto3",
    )
