"""SageMaker's own description of its calls, from botocore: the fields, types and limits that `request.limits` checks."""

from __future__ import annotations

from functools import cache

from algorun_client.request.limits import Shape
from algorun_client.request.model import Kind

OPERATIONS = {Kind.TRAINING: "CreateTrainingJob", Kind.PROCESSING: "CreateProcessingJob"}


TUNING = "CreateHyperParameterTuningJob"


def input_shape(kind: Kind) -> Shape:
    """botocore's shape of the arguments that create a job. Reads a file of botocore; needs no credentials."""
    return _shape(OPERATIONS[kind])


def tuning_shape() -> Shape:
    """The same of a tuning job."""
    return _shape(TUNING)


@cache
def _shape(operation: str) -> Shape:
    import botocore.session

    model = botocore.session.get_session().get_service_model("sagemaker")
    shape: Shape = model.operation_model(operation).input_shape
    return shape
