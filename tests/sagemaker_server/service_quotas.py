"""What moto's Service Quotas lacks: those of SageMaker, in pages, as ListServiceQuotas gives them.

Names are those of the real service: https://docs.aws.amazon.com/general/latest/gr/sagemaker.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorun_client.aws.service_model import input_shape
from algorun_client.request.model import Kind

TARGET = "ServiceQuotasV20190624."
USAGES = ("training job", "spot training job", "training warm pool", "processing job")
EVERY, NONE_YET = 20.0, ("p4d", "p5")  # instances of a type; a new account has none of some families


def list_quotas(limit: int, *, ServiceCode: str, MaxResults: int = 100, NextToken: str = "0") -> Mapping[str, Any]:
    """A page. `limit`: of all types, 0 for those of a new account."""
    assert ServiceCode == "sagemaker"
    types = input_shape(Kind.TRAINING).members["ResourceConfig"].members["InstanceType"].enum
    names = [f"{instance} for {usage} usage" for usage in USAGES for instance in types]
    begin = int(NextToken)
    shown = names[begin : begin + MaxResults]
    rest = {"NextToken": str(begin + MaxResults)} if begin + MaxResults < len(names) else {}
    return {"Quotas": [_quota(begin + n, name, limit) for n, name in enumerate(shown)], **rest}


def _quota(number: int, name: str, limit: int) -> Mapping[str, Any]:
    own = 0.0 if name.split(".")[1] in NONE_YET else EVERY
    return {"ServiceCode": "sagemaker", "QuotaCode": f"L-{number:08X}", "QuotaName": name, "Value": float(limit or own)}
