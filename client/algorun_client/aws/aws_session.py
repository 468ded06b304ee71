"""AWS through boto3: its clients as the protocols of `api`, and the facts of an account.

boto3 is imported when a session is opened, so that commands for this machine start without it. Its own adaptive
retries carry every call over throttling and short failures; what they cannot repair becomes an ApiError.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from difflib import get_close_matches
from functools import cached_property
from typing import TypedDict, TypeVar

from algorun.common.codec import loads
from algorun.common.errors import UserError
from algorun_client.common.codes import ClientCode
from algorun_client.common.errors import ApiError
from algorun_client.common.refusals import LOG_IN, Unanswered, explained

from . import fields, job_role
from .api import Answer, ObjectStore, Target
from .boto_errors import as_api_errors
from .boto_types import BotoSession, Client

T = TypeVar("T")

SENDING = 16  # tries of a call while a job is made: 115 s of throttling on average, more than 60 s in 99.8 % of cases
FOLLOWING = 3  # a follower asks again anyway, and should say soon that nobody answers
CONNECT_S, READ_S = 10, 60
# Until AWS has answered once: a laptop without a way to it should say so within 10 s. A name may have several addresses, and
# each is tried for so long.
FIRST_CONNECT_S, FIRST_READ_S = 2.5, 6
NAME_LOOKUP = "timeout:2 attempts:2"  # seconds and tries of each server of names, for the C library
NO_WAY = ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ProxyConnectionError", "SSLError")
LAST_TRY_S = 900.0  # after the first try of a call that creates a job: later this client is given up (send/decision.py)
LARGEST_CONFIGURATION = 8 << 20  # bytes; that of an image has some 10,000
CONNECTIONS = 32  # at once to one service: uploads and log streams come in parallel
IMAGE = re.compile(
    r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)(?::([^@]+))?(?:@(sha256:[0-9a-f]{64}))?"
)
ENDPOINT = "AWS_ENDPOINT_URL"  # of servers that are not AWS's: their regions may have any name


def call(function: Callable[..., T], operation: str, **arguments: object) -> T:
    """Calls a method of a boto3 client. Raises ApiError, NotFound or Exists in place of botocore's exceptions."""
    with as_api_errors(operation):
        return function(**arguments)


class AwsSageMaker:
    """SageMakerApi over boto3's client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._first_try = 0.0
        for operation in ("CreateTrainingJob", "CreateProcessingJob"):
            client.meta.events.register(f"before-send.sagemaker.{operation}", self._refuse_late)

    def _refuse_late(self, event_name: str, **_: object) -> None:
        """Before each try. By the clock of the wall: a laptop may sleep between two."""
        took = time.time() - self._first_try
        if took > LAST_TRY_S:
            text = f"no answer for {took / 60:.0f} minutes, or this machine slept so long"
            raise ApiError("RequestTimeout", text, event_name.rpartition(".")[2])

    def create_training_job(self, **request: object) -> Answer:
        self._first_try = time.time()
        return call(self._client.create_training_job, "CreateTrainingJob", **request)

    def create_processing_job(self, **request: object) -> Answer:
        self._first_try = time.time()
        return call(self._client.create_processing_job, "CreateProcessingJob", **request)

    def describe_training_job(self, *, TrainingJobName: str) -> Answer:
        return call(self._client.describe_training_job, "DescribeTrainingJob", TrainingJobName=TrainingJobName)

    def describe_processing_job(self, *, ProcessingJobName: str) -> Answer:
        return call(self._client.describe_processing_job, "DescribeProcessingJob", ProcessingJobName=ProcessingJobName)

    def stop_training_job(self, *, TrainingJobName: str) -> Answer:
        return call(self._client.stop_training_job, "StopTrainingJob", TrainingJobName=TrainingJobName)

    def stop_processing_job(self, *, ProcessingJobName: str) -> Answer:
        return call(self._client.stop_processing_job, "StopProcessingJob", ProcessingJobName=ProcessingJobName)

    def list_training_jobs(self, **query: object) -> Answer:
        return call(self._client.list_training_jobs, "ListTrainingJobs", **query)

    def list_processing_jobs(self, **query: object) -> Answer:
        return call(self._client.list_processing_jobs, "ListProcessingJobs", **query)


class AwsLogs:
    """LogsApi over boto3's client."""

    def __init__(self, client: Client) -> None:
        client.meta.events.register("before-parse.cloudwatch-logs.GetLogEvents", take_events)
        self._client = client

    def describe_log_streams(self, **query: object) -> Answer:
        return call(self._client.describe_log_streams, "DescribeLogStreams", **query)

    def get_log_events(self, **query: object) -> Answer:
        return call(self._client.get_log_events, "GetLogEvents", **query)


class AwsCloudWatch:
    """CloudWatchApi over boto3's client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def get_metric_data(self, **query: object) -> Answer:
        return call(self._client.get_metric_data, "GetMetricData", **query)


class AwsSession:
    """An account in a region. Facts raise UserError with code 71 if the credentials or rights do not suffice."""

    def __init__(self, session: BotoSession, tries: int = SENDING) -> None:
        self._session, self._tries = session, tries
        self.region = str(session.region_name)
        self._account = ""
        self._arn = ""
        self._answered = False

    def client(self, service: str, tries: int = 0, region: str = "") -> Client:
        """A boto3 client with this session's time limits; `tries`, `region`: 0 and "" for the session's."""
        from botocore.config import Config

        config = Config(
            retries={"mode": "adaptive", "total_max_attempts": tries or self._tries},
            connect_timeout=CONNECT_S if self._answered else FIRST_CONNECT_S,
            read_timeout=READ_S if self._answered else FIRST_READ_S,
            max_pool_connections=CONNECTIONS,
            user_agent_extra="algorun",
        )
        made = self._session.client(service, config=config, region_name=region or None)
        made.meta.events.register_first(
            "needs-retry", self._end_without_a_way
        )  # before botocore's own answer: to try again
        return made

    def _end_without_a_way(
        self, response: object = None, caught_exception: Exception | None = None, event_name: str = "", **_: object
    ) -> None:
        """After each try. Where AWS has never answered, one try is enough to know that there is no way to it."""
        if response is not None:
            self._answered = True
        elif not self._answered and type(caught_exception).__name__ in NO_WAY:
            raise ApiError(type(caught_exception).__name__, str(caught_exception), event_name.rpartition(".")[2])

    def account(self) -> str:
        """The number of the account, of 12 digits."""
        if not self._account:
            answer = self._fact(self.client("sts").get_caller_identity, "GetCallerIdentity")
            self._account, self._arn = str(answer["Account"]), str(answer["Arn"])
        return self._account

    def default_bucket(self) -> str:
        """The bucket that SageMaker's SDKs use too."""
        return f"sagemaker-{self.region}-{self.account()}"

    def role_arn(self, name: str) -> str:
        """The ARN of the role that the job gets.

        `name`: an ARN, a role's name (its path is looked up), or "" for the role that the caller has assumed, as in a
        notebook of SageMaker.
        """
        return job_role.find(self, name)

    def caller(self) -> str:
        """The ARN of whoever calls."""
        self.account()
        return self._arn

    def role(self, name: str) -> Answer:
        """A role, as GetRole returns it. Raises NotFound or ApiError."""
        return fields.inner(call(self.client("iam").get_role, "GetRole", RoleName=name), "Role")

    def image_digest(self, image: str) -> str | None:
        """The digest of an image in ECR, None for an image elsewhere. Raises UserError if it does not exist, or if it lies in another
        region than this one: SageMaker takes none from there."""
        found = IMAGE.fullmatch(image)
        if found and found[2] != self.region and ENDPOINT not in os.environ:
            raise UserError(
                "--image",
                f"{image} lies in {found[2]}, and the job runs in {self.region}: SageMaker wants both in one region",
                fix=f"`./build.sh push --region {self.region}` and the name that it prints, or --region {found[2]}",
            )
        if found is None or found[5]:
            return found[5] if found else None
        answer = self._image_details(image, found, {"imageTag": found[4] or "latest"})
        return fields.required(fields.tables(answer, "imageDetails")[0], "imageDigest")

    def check_digest(self, image: str) -> None:
        """Raises UserError if an image of ECR that is named by its digest does not exist. `image_digest` believes the name."""
        found = IMAGE.fullmatch(image)
        if found is not None and found[5]:
            self._image_details(image, found, {"imageDigest": found[5]})

    def _image_details(self, image: str, found: re.Match[str], wanted: dict[str, str]) -> Answer:
        client = self._ecr(found[2])
        place = {"registryId": found[1], "repositoryName": found[3]}
        try:
            return call(client.describe_images, "DescribeImages", **place, imageIds=[wanted])
        except ApiError as error:
            if error.code in ("ImageNotFoundException", "RepositoryNotFoundException"):
                raise UserError(
                    "--image",
                    f"{image} does not exist: {error.message}",
                    fix=f"`./build.sh push --region {found[2]}` puts algorun's image there",
                ) from None
            raise explained(error) from None

    def image_labels(self, image: str) -> dict[str, str]:
        """The labels of an image in ECR, {} for an image elsewhere."""
        found = IMAGE.fullmatch(image)
        if found is None:
            return {}
        wanted = {"imageDigest": found[5]} if found[5] else {"imageTag": found[4] or "latest"}
        client = self._ecr(found[2])
        place = {"registryId": found[1], "repositoryName": found[3]}
        answer = self._fact(client.batch_get_image, "BatchGetImage", **place, imageIds=[wanted])
        images = fields.tables(answer, "images")
        if not images:
            return {}
        manifest = _table(fields.required(images[0], "imageManifest"), "the image's manifest")
        if "config" not in manifest:  # an index of several platforms
            return {}
        layer = self._fact(
            client.get_download_url_for_layer,
            "GetDownloadUrlForLayer",
            **place,
            layerDigest=fields.required(fields.inner(manifest, "config"), "digest"),
        )
        content = self._fact(_download, "GetDownloadUrlForLayer", url=layer["downloadUrl"])
        return fields.texts(fields.inner(_table(content, "the image's configuration"), "config"), "Labels")

    def target(self, bucket: str = "", kms_key: str = "", tries: int = 0) -> Target:
        """Where jobs run. Makes no call.

        `bucket`: the one of tasks, "" for the default one; it must be this account's. `kms_key` encrypts what is uploaded.
        """
        return AwsTarget(self, bucket, kms_key, tries)

    def _ecr(self, region: str) -> Client:
        return self.client("ecr", region=region)

    def _fact(self, function: Callable[..., T], operation: str, **arguments: object) -> T:
        try:
            return call(function, operation, **arguments)
        except ApiError as error:
            raise explained(error) from None


class AwsTarget:
    """A Target in an account and region. A command makes only the clients that it uses, and only S3 needs the account."""

    name = "aws"

    def __init__(self, session: AwsSession, bucket: str, kms_key: str, tries: int) -> None:
        self._session, self._bucket, self._kms_key, self._tries = session, bucket, kms_key, tries

    @cached_property
    def sagemaker(self) -> AwsSageMaker:
        return AwsSageMaker(self._session.client("sagemaker", self._tries))

    @cached_property
    def logs(self) -> AwsLogs:
        return AwsLogs(self._session.client("logs", self._tries))

    @cached_property
    def cloudwatch(self) -> AwsCloudWatch:
        return AwsCloudWatch(self._session.client("cloudwatch", self._tries))

    @cached_property
    def store(self) -> ObjectStore:
        """Raises UserError if the account cannot be asked for."""
        from .s3_store import S3Store

        client, bucket = self._session.client("s3", self._tries), self._bucket or self._session.default_bucket()
        return S3Store(client, self._session.account(), self._kms_key, bucket)


def _table(content: str | bytes, what: str) -> Answer:
    """The JSON object in an answer. Raises UserError."""
    try:
        found = loads(content)
    except ValueError as error:
        raise explained(ApiError("InvalidAnswer", f"{what} is no JSON: {error}")) from None
    if not isinstance(found, dict):
        raise explained(ApiError("InvalidAnswer", f"{what} is no object"))
    return found


def _download(url: str) -> bytes:
    """A small file. Raises an OSError of the network."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=READ_S) as file:
            return bytes(file.read(LARGEST_CONFIGURATION))
    except urllib.error.URLError as error:
        raise ConnectionError(f"{url.partition('?')[0]}: {error.reason}") from None


def open_session(profile: str = "", region: str = "", tries: int = SENDING) -> AwsSession:
    """A session of boto3. Makes no call. Raises Unanswered with code 71 without profile, credentials or region, and
    UserError for a region that does not exist."""
    import boto3
    from botocore.exceptions import BotoCoreError

    os.environ.setdefault("RES_OPTIONS", NAME_LOOKUP)
    try:
        session = boto3.Session(profile_name=profile or None, region_name=region or None)
        credentials = session.get_credentials()
    except BotoCoreError as error:
        raise Unanswered("--profile", str(error), fix=LOG_IN, code=ClientCode.CREDENTIALS) from None
    if credentials is None:
        raise Unanswered("AWS", "no credentials are found", fix=LOG_IN, code=ClientCode.CREDENTIALS)
    if not session.region_name:
        raise Unanswered(
            "--region", "no region is given", fix="--region NAME, or AWS_REGION", code=ClientCode.CREDENTIALS
        )
    check_region(session)
    return AwsSession(session, tries)


def check_region(session: BotoSession, where: str = "--region") -> None:
    """Raises UserError if boto3 does not know the session's region, and makes no call. `session`: boto3's.

    A name with a typing error has no address, and boto3 looks for that address for half a minute.
    """
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


class RawAnswer(TypedDict):
    """An answer before botocore parses it."""

    status_code: int
    body: bytes


def take_events(response_dict: RawAnswer, customized_response_dict: dict[str, object], **_: object) -> None:
    """A handler of botocore's `before-parse`: the events go into what botocore adds to its parsed answer.

    botocore's parser visits every field of every event: 5 us for each line, where `json` takes 0.8 us. At 16,000 lines a
    second that is the largest part of what following costs. What is no answer with events, or not JSON, is left to
    botocore as it is.
    """
    if response_dict["status_code"] != 200:
        return
    try:
        answer = loads(response_dict["body"])
    except ValueError:
        return
    events = answer.pop("events", None) if isinstance(answer, dict) else None
    if isinstance(events, list):
        customized_response_dict["events"] = events
        response_dict["body"] = json.dumps(answer).encode()
