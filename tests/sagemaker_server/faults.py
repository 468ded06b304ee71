"""What the server is told to do wrong."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import Any

QUOTA = (
    "The account-level service limit '{instance} for {kind} job usage' is {limit} Instances, with current utilization of {used} Instances "
    "and a request delta of {count} Instances. Please use AWS Service Quotas to request an increase for this quota."
)
CAPACITY = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
)


NO_REMOTE_DEBUG = (
    "User: arn:aws:iam::123456789012:user/x is not authorized to perform: sagemaker:CreateTrainingJob on resource: "
    "arn:aws:sagemaker:eu-west-1:123456789012:training-job/{job} with an explicit deny in an identity-based policy"
)


@dataclass(slots=True)
class Faults:
    """POST /__faults sets the fields that it names; {} resets all. GET /__faults shows them."""

    throttle_s: float = 0.0  # from now on every call is throttled for this time
    expired: bool = False  # the caller's token
    quota: bool = False  # CreateX is refused
    instances: int = 0  # CreateX is refused if jobs of a kind would hold more instances of a type; 0: no limit
    capacity: bool = False  # CreateX is accepted, and the job fails
    # With commas between them: instance types, TYPE@REGION for one region alone.
    without_quota: str = ""  # CreateX is refused for these
    without_capacity: str = ""  # CreateX is accepted for these, and the job fails
    lose_answers: int = 0  # so many CreateX are carried out, but their answer is a 500
    late_s: float = 0.0  # log events come up to this much later, and out of order
    streams: int = 1  # the lines of each host go to so many streams in turn
    without_remote_debug: bool = False  # a policy refuses CreateTrainingJob with remote debugging
    denied: str = ""  # the caller has no right to this call, such as ListServiceQuotas
    _throttle_until: float = field(default=0.0, repr=False)

    def set(self, values: dict[str, Any]) -> None:
        """Raises ValueError for an unknown name or a value of another type."""
        known = {
            each.name: type(getattr(Faults(), each.name)) for each in fields(self) if not each.name.startswith("_")
        }
        for name, value in (values or {name: kind() for name, kind in known.items()}).items():
            if name not in known or not isinstance(value, known[name] if known[name] is not float else int | float):
                raise ValueError(f"{name}: {value!r}; known: {', '.join(known)}")
            setattr(self, name, value)
        self.streams = max(self.streams, 1)
        if "throttle_s" in values or not values:
            self._throttle_until = time.monotonic() + self.throttle_s

    def shown(self) -> dict[str, Any]:
        """All fields."""
        return {each.name: getattr(self, each.name) for each in fields(self) if not each.name.startswith("_")}

    def has_quota(self, instance: str, region: str) -> bool:
        """False if CreateX is refused for this type, whatever else runs."""
        return not self.quota and not _names(self.without_quota, instance, region)

    def has_room(self, instance: str, region: str) -> bool:
        """False if a job on this type finds no free instances."""
        return not self.capacity and not _names(self.without_capacity, instance, region)

    def refusal(self, operation: str) -> tuple[str, str] | None:
        """Code and message of the error that a call gets now."""
        if operation == self.denied:
            return (
                "AccessDeniedException",
                f"User: arn:aws:iam::123456789012:user/x is not authorized to perform: {operation}",
            )
        if self.expired:
            return "ExpiredTokenException", "The security token included in the request is expired"
        if time.monotonic() < self._throttle_until:
            return "ThrottlingException", "Rate exceeded"
        return None


def _names(listed: str, instance: str, region: str) -> bool:
    return not {instance, f"{instance}@{region}"}.isdisjoint(listed.split(","))
