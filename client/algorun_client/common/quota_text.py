"""What SageMaker says about a limit of the account. Pure."""

from __future__ import annotations

import re

# "The account-level service limit 'ml.p4d.24xlarge for training job usage' is 0 Instances, with current utilization of 0
# Instances and a request delta of 1 Instances."
LIMIT = re.compile(r"limit '(?P<name>[^']*)' is (?P<limit>\d+) Instances.* request delta of (?P<asked>\d+) Instances")


def never_fits(text: str) -> bool:
    """True if one request asks for more instances than the account may ever have: waiting would not help."""
    found = LIMIT.search(text)
    return found is not None and int(found["asked"]) > int(found["limit"])
