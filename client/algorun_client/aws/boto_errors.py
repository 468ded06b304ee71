"""Errors of boto3's calls as ApiError, NotFound and Exists."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from algorun_client.common.errors import ApiError, Exists, NotFound

# S3 answers a HEAD without a text: the code is then the HTTP status.
MISSING = ("ResourceNotFound", "ResourceNotFoundException", "NoSuchKey", "NoSuchBucket", "404", "NoSuchEntity")
# ConditionalRequestConflict: two clients wrote one new object at once; neither may count it as its own.
PRESENT = ("ResourceInUse", "PreconditionFailed", "412", "ConditionalRequestConflict")


@contextmanager
def as_api_errors(operation: str) -> Iterator[None]:
    """Turns botocore's exceptions inside the block, and those of the network, into ours. Errors of this machine's disk pass."""
    import http.client
    import socket
    import ssl

    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

    try:
        yield
    except ClientError as error:
        found = error.response.get("Error", {})
        raise api_error(str(found.get("Code", "")), str(found.get("Message", "")), operation) from None
    except ParamValidationError as error:
        raise ApiError("ValidationException", str(error), operation) from None
    except (BotoCoreError, Boto3Error) as error:
        inner = error.__context__
        if isinstance(inner, ClientError):  # a transfer of boto3 hides why it was refused
            found = inner.response.get("Error", {})
            raise api_error(str(found.get("Code", "")), str(found.get("Message", "")), operation) from None
        raise ApiError(type(error).__name__, str(error), operation) from None
    except (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError, http.client.HTTPException) as error:
        raise ApiError("ConnectionError", str(error) or type(error).__name__, operation) from None


def api_error(code: str, message: str, operation: str) -> ApiError:
    """AWS's words for what is absent and for what exists are many."""
    text = message.lower()
    absent = "not found" in text or "could not find" in text
    if code in MISSING or (code == "ValidationException" and operation.startswith(("Describe", "Stop")) and absent):
        return NotFound(code, message, operation)
    if code in PRESENT or (code == "ValidationException" and "already exists" in text):
        return Exists(code, message, operation)
    return ApiError(code, message, operation)
