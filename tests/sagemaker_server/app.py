"""JSON 1.1 of AWS over HTTP: one WSGI application for SageMaker and CloudWatch Logs."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from werkzeug.wrappers import Request, Response

from algorun.common.errors import UserError
from algorun_client.aws.job_state import ENDED
from algorun_client.common.errors import ApiError, NotFound
from algorun_client.local.job_folder import JobFolder
from algorun_client.local.platform import LocalPlatform
from algorun_client.request.model import Kind

from . import registry, service_quotas
from .faults import CAPACITY, NO_REMOTE_DEBUG, QUOTA, Faults
from .host_figures import PublishedFigures
from .late_logs import LateLogs
from .registry import Registry
from .tuning import Tuning

Answer = Mapping[str, Any]
JSON_1_1 = "application/x-amz-json-1.1"


class App:
    """Dispatches calls by their X-Amz-Target."""

    def __init__(
        self,
        platform: LocalPlatform,
        logs: LateLogs,
        faults: Faults,
        images: Registry,
        figures: PublishedFigures,
        tuning: Tuning,
    ) -> None:
        self._platform, self._faults, self._registry, self._figures = platform, faults, images, figures
        self._creating = threading.Lock()
        self._caller = _Caller()
        self._calls: dict[str, Callable[..., Answer]] = {
            "SageMaker.CreateTrainingJob": lambda **request: self._create(Kind.TRAINING, request),
            "SageMaker.CreateProcessingJob": lambda **request: self._create(Kind.PROCESSING, request),
            "SageMaker.DescribeTrainingJob": lambda **query: self._describe(Kind.TRAINING, query),
            "SageMaker.DescribeProcessingJob": lambda **query: self._describe(Kind.PROCESSING, query),
            "SageMaker.StopTrainingJob": platform.stop_training_job,
            "SageMaker.StopProcessingJob": platform.stop_processing_job,
            "SageMaker.ListTrainingJobs": platform.list_training_jobs,
            "SageMaker.ListProcessingJobs": platform.list_processing_jobs,
            "SageMaker.ListTags": self._tags,
            "SageMaker.CreateHyperParameterTuningJob": tuning.create,
            "SageMaker.DescribeHyperParameterTuningJob": tuning.describe,
            "SageMaker.StopHyperParameterTuningJob": tuning.stop,
            "SageMaker.ListTrainingJobsForHyperParameterTuningJob": tuning.list_jobs,
            f"{service_quotas.TARGET}ListServiceQuotas": lambda **query: service_quotas.list_quotas(
                faults.instances, **query
            ),
            "Logs_20140328.DescribeLogStreams": logs.describe_log_streams,
            "Logs_20140328.GetLogEvents": logs.get_log_events,
        }

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        request = Request(environ)
        try:
            response = self._answer(request)
        except ApiError as error:
            response = _refused(error.code, error.message)
        except UserError as error:
            response = _refused("ValidationException", str(error))
        except Exception:
            traceback.print_exc()
            response = _refused("InternalFailure", "a defect of the test server", 500)
        return response(environ, start)

    def _answer(self, request: Request) -> Response:
        if request.path == "/__faults":
            return self._control(request)
        if request.path.startswith(registry.LAYERS):
            return self._registry.layer(request)
        if request.headers.get("X-Amz-Target", "").startswith(registry.TARGET):
            return self._registry.call(request)
        return self._call(request)

    def _control(self, request: Request) -> Response:
        """GET shows the faults, POST sets them. {"interrupt": JOB} takes the hosts of a spot job away, with "for_good" until its time is over."""
        if request.method == "POST":
            values = json.loads(request.get_data() or b"{}")
            if "interrupt" in values:
                self._platform.interrupt(values["interrupt"], for_good=values.get("for_good", False))
            else:
                try:
                    self._faults.set(values)
                except ValueError as error:
                    return Response(str(error), 400)
        return _json(self._faults.shown())

    def _call(self, request: Request) -> Response:
        target = request.headers.get("X-Amz-Target", "")
        if target not in self._calls:
            return _refused("UnknownOperationException", f"{target!r} is not served; known: {', '.join(self._calls)}")
        if refusal := self._faults.refusal(target.rpartition(".")[2]):
            return _refused(*refusal)
        self._caller.region = _region(request)
        answer = self._calls[target](**json.loads(request.get_data() or b"{}"))
        if ".Create" in target and self._faults.lose_answers > 0:
            self._faults.lose_answers -= 1
            return _refused("InternalFailure", "the answer is lost", 500)
        return _json(answer)

    def _create(self, kind: Kind, request: Mapping[str, Any]) -> Answer:
        if self._faults.without_remote_debug and "RemoteDebugConfig" in request:
            raise ApiError("AccessDeniedException", NO_REMOTE_DEBUG.format(job=request["TrainingJobName"]))
        with self._creating:  # two calls at once count each other
            instance, _ = _hosts(request)
            has_quota = self._faults.has_quota(instance, self._caller.region)
            limit = self._faults.instances if has_quota else 0
            if not has_quota or limit:
                self._within(limit, kind, request)
            has_room = self._faults.has_room(instance, self._caller.region)
            arn = self._platform.accept(kind, request, failure="" if has_room else CAPACITY)
        return {f"{kind.value.capitalize()}JobArn": arn}

    def _within(self, limit: int, kind: Kind, request: Mapping[str, Any]) -> None:
        """Raises ApiError if jobs of this kind would hold more instances of the type."""
        instance, count = _hosts(request)
        jobs = [each for each in JobFolder.all(self._platform.root, kind) if not each.record().has_ended]
        held = [_hosts(each.read("request.json")) for each in jobs]
        used = sum(number for other, number in held if other == instance)
        if used + count > limit:
            text = QUOTA.format(kind=kind.value, instance=instance, count=count, limit=limit, used=used)
            raise ApiError("ResourceLimitExceeded", text)

    def _describe(self, kind: Kind, query: Mapping[str, Any]) -> Answer:
        training, processing = self._platform.describe_training_job, self._platform.describe_processing_job
        answer: Answer = training(**query) if kind is Kind.TRAINING else processing(**query)
        word = kind.value.capitalize()
        if answer[f"{word}JobStatus"] in ENDED:
            self._figures.publish(kind, answer[f"{word}JobName"])
        return answer

    def _tags(self, *, ResourceArn: str, **_: Any) -> Answer:
        kind_word, _, job = ResourceArn.rpartition(":")[2].partition("/")
        for kind in Kind:
            for folder in JobFolder.all(self._platform.root, kind):
                if kind_word == f"{kind.value}-job" and folder.job.lower() == job:
                    return {"Tags": folder.read("request.json").get("Tags") or []}
        raise NotFound("ValidationException", "Requested resource not found.")


class _Caller(threading.local):
    """Who calls in this thread."""

    region = ""


def _region(request: Request) -> str:
    """The region of a call: it is signed for it, in `Credential=KEY/DATE/REGION/SERVICE/aws4_request`."""
    scope = request.headers.get("Authorization", "").partition("Credential=")[2].split("/")
    return scope[2] if len(scope) > 2 else ""


def _hosts(request: Mapping[str, Any]) -> tuple[str, int]:
    """Instance type and number."""
    resources = request.get("ResourceConfig") or request["ProcessingResources"]["ClusterConfig"]
    return str(resources.get("InstanceType")), int(resources.get("InstanceCount") or 1)


def _json(answer: Answer) -> Response:
    return Response(json.dumps(answer, default=_time), content_type=JSON_1_1)


def _time(value: object) -> float:
    assert isinstance(value, datetime), value
    return round(value.timestamp(), 3)


def _refused(code: str, message: str, status: int = 400) -> Response:
    return Response(json.dumps({"__type": code, "message": message}), status, content_type=JSON_1_1)
