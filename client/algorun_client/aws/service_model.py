"""SageMaker's own description of its calls, from botocore: the fields, types and limits that `request.limits` checks."""

from __future__ import annotations

from functools import cache

from algorun_client.request.limits import Shape
from algorun_client.request.model import Kind

OPERATIONS = {Kind.TRAINING: "CreateTrainingJob", Kind.PROCESSING: "CreateProcessingJob"}


@cache
def input_shape(kind: Kind) -> Shape:
    """botocore's shape of the arguments that create a job. Reads a file of botocore; needs no credentials."""
    import botocore.session

    model = botocore.session.get_session().get_service_model("sagemaker")
    shape: Shape = model.operation_model(OPERATIONS[kind]).input_shape
    return shape
