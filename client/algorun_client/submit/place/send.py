"""A request becomes a job: claim, uploads, Create."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from algorun.common.errors import UserError
from algorun_client.aws.api import Target
from algorun_client.aws.job_state import describe
from algorun_client.common.errors import ApiError, Exists, Interrupted, NotFound
from algorun_client.common.progress import Progress
from algorun_client.common.refusals import Refusal, refusal
from algorun_client.request.model import HOLD, Kind, Request, TaskAddress
from algorun_client.submit.history import done
from algorun_client.submit.history.claims import newest_first

from . import decision, state_folder
from .claim import ClaimStep, hold, request_id, take
from .mirror import Origin, origins
from .uploads import upload

REMOTE_DEBUG = "RemoteDebugConfig"
EARLIER = 3  # executions whose uploads are looked at: a client of the last one may have died before it uploaded


@dataclass(frozen=True, slots=True)
class Sent:
    """A job that exists. `joined`: it ran already. `warning`: what it goes without."""

    request: Request
    joined: bool
    warning: str = ""


def send(
    target: Target,
    address: TaskAddress,
    make: Callable[[int], Request],
    progress: Progress,
    *,
    clean_state: bool = False,
    ended: float = math.inf,
    before: Callable[[Request], None] | None = None,
    last_look: Callable[[], None] | None = None,
) -> Sent:
    """Makes one job of a request. May be interrupted anywhere: the same call later goes on, and makes no second one.

    `make` assembles the request of an execution of the task. `clean_state`: its checkpoints are removed first. `ended`, and
    EndedSince: as `claim.choose`. `before`: is called when all is uploaded, and may refuse the job by an error. `last_look`: the
    same, once no other client can create a job of the task in this bucket.

    Raises UserError or ApiError; then there is no job. Raises Interrupted after Ctrl-C; then there may be one if its text
    says so.
    """
    try:
        choice = take(target, address, make, ended)
        if choice.step is ClaimStep.JOIN:
            if clean_state:
                raise in_use(choice.request.job)
            return Sent(choice.request, joined=True)
        upload(target.store, choice.request, lambda: _uploaded(target, choice.request), progress)
        done.keep_fingerprint(target.store, choice.request)
        if before is not None:
            before(choice.request)
        word = hold(target, address, choice.request)
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted("no job was created; the same line goes on") from None
    try:
        if last_look is not None:
            last_look()
        if clean_state:
            _clean_state(target, choice.request)
        warning = _create(target, choice.request)
    except (ApiError, UserError) as error:
        if not isinstance(error, ApiError) or refusal(error) is not Refusal.UNREACHABLE:  # there an answer may be lost
            _withdraw(target, word, error)
        raise
    except KeyboardInterrupt:
        raise Interrupted("the job was about to be created; the same line joins it, and makes no second one") from None
    return Sent(choice.request, joined=False, warning=warning)


def _withdraw(target: Target, word: str, refused: ApiError | UserError) -> None:
    """Another request may have the next execution at once; without this it waits for `decision.GIVEN_UP`."""
    try:
        decision.withdraw(target.store, word)
    except ApiError:  # what the user has to learn is why there is no job
        pass
    except KeyboardInterrupt:
        raise Interrupted(f"no job was created: {refused}; the same line goes on") from None


def _uploaded(target: Target, request: Request) -> Mapping[str, Origin]:
    """What the task's last executions have uploaded, by its SHA-256."""
    claims = islice(newest_first(target.store, request.address, below=request.number), EARLIER)
    return origins(target.store, dict.fromkeys(prefix for claim in claims for prefix in claim.mirrors))


def _create(target: Target, request: Request) -> str:
    """Returns a warning where the job goes without remote debugging, "" otherwise."""
    try:
        _call_create(target, request)
    except ApiError as error:
        if REMOTE_DEBUG not in request.create or not _may_be_of_remote_debugging(error):
            raise
        try:
            _call_create(target, _without_a_hold(request))
        except ApiError as other:
            if refusal(other) is Refusal.DENIED:
                raise error from None  # that was not it
            raise  # its answer may be lost, or these hosts may not be had: then the same is tried elsewhere
        return (
            f"--hold-on-failure: remote debugging is not allowed ({error.code}: {error.message}), so nobody could look at the hosts "
            "of a failed job: it runs, and they are not held; fix: a policy that allows jobs with it (condition key "
            "sagemaker:EnableRemoteDebug)"
        )
    return ""


def _may_be_of_remote_debugging(error: ApiError) -> bool:
    """A policy may allow jobs without it only (condition key sagemaker:EnableRemoteDebug); the error then names the job alone."""
    return refusal(error) is Refusal.DENIED or "RemoteDebug" in error.message


def _without_a_hold(request: Request) -> Request:
    """The same job without remote debugging, and without the hold that would be paid for in vain."""
    create = {name: value for name, value in request.create.items() if name != REMOTE_DEBUG}
    environment = create.get("Environment")
    if isinstance(environment, dict):
        create["Environment"] = {name: value for name, value in environment.items() if name != HOLD}
    return replace(request, create=create)


def _call_create(target: Target, request: Request) -> None:
    api = target.sagemaker
    call = api.create_training_job if request.kind is Kind.TRAINING else api.create_processing_job
    try:
        call(**request.create)
    except Exists:  # the answer to an earlier call was lost, or another client goes on with the same claim
        try:
            state = describe(api, request.kind, request.job)
        except NotFound:
            raise _taken(request) from None
        if state.request_id != request_id(request):
            raise _taken(request) from None


def _clean_state(target: Target, request: Request) -> None:
    """Raises UserError if the job exists by now: an earlier call of this line, which seemed to have ended, has created it."""
    with contextlib.suppress(NotFound):
        if not describe(target.sagemaker, request.kind, request.job).ended:
            raise in_use(request.job)
    state_folder.clean(target.store, request.address)


def in_use(job: str) -> UserError:
    """The error of `--clean-state` while the task's job runs."""
    return UserError(
        "--clean-state",
        f"job {job} runs, and writes this state",
        fix=f"`algorun stop {job}` first, or drop the option to join the job",
    )


def _taken(request: Request) -> UserError:
    return UserError(
        f"job {request.job}", "the name is in use by a job of another request", fix="submit under another --task name"
    )
