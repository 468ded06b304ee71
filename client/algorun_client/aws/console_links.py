"""Where a job and its lines are shown in AWS's console. Pure.

Sources: the addresses that the consoles of SageMaker and CloudWatch show in a browser. CloudWatch's is encoded twice, with
`$` in place of `%`.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from algorun_client.request.model import Kind

from .job_state import GROUPS

# The console's name by the beginning of a region's name.
CONSOLES = {"cn-": "console.amazonaws.cn", "us-gov-": "console.amazonaws-us-gov.com"}
UNKNOWN = ("us-iso", "eu-iso", "eusc-")
PAGES = {Kind.TRAINING: "jobs", Kind.PROCESSING: "processing-jobs"}


def links(kind: Kind, job: str, region: str) -> Mapping[str, str]:
    """`console` and `logs`, each an address; {} in regions whose console has none that is known."""
    if region.startswith(UNKNOWN):
        return {}
    name = next((name for begin, name in CONSOLES.items() if region.startswith(begin)), "console.aws.amazon.com")
    home = f"https://{region}.{name}"
    streams = f"{_twice(_once(GROUPS[kind]))}$3FlogStreamNameFilter$3D{_twice(_once(f'{job}/'))}"
    return {
        "console": f"{home}/sagemaker/home?region={region}#/{PAGES[kind]}/{quote(job, safe='')}",
        "logs": f"{home}/cloudwatch/home?region={region}#logsV2:log-groups/log-group/{streams}",
    }


def _once(text: str) -> str:
    return quote(text, safe="")


def _twice(text: str) -> str:
    return quote(text, safe="").replace("%", "$")
