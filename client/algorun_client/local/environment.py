"""What a job sees of this machine's environment: as on SageMaker nothing of the user's shell that is not sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from algorun_client.request.model import Kind

from .answers import arn
from .job_description import JobDescription

# What a program needs to start here; a container has its own. Everything else comes from the request.
KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX",
    "PIP_CONFIG_FILE", "PIP_CERT", "PIP_TRUSTED_HOST", "PIP_CACHE_DIR", "VIRTUAL_ENV",
)  # fmt: skip


def for_host(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of this machine that a simulated host gets."""
    return {name: value for name, value in environ.items() if name in KEPT or name.startswith("LC_")}


def for_runner(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job's runner: with those of AWS, where the objects are kept in S3, and of docker's client."""
    own = {name: value for name, value in environ.items() if name.startswith("AWS_") or name == "DOCKER_CONFIG"}
    return {**for_host(environ), **own}


def of_job(job: JobDescription) -> dict[str, str]:
    """The variables that SageMaker sets in every container of a job, and where the job is."""
    here = {"ALGORUN_WHERE": "local"}
    if job.kind is Kind.PROCESSING:
        return here
    return {"TRAINING_JOB_NAME": job.job, "TRAINING_JOB_ARN": arn(job.kind, job.job), **here}
