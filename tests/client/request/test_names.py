"""Names: what is refused, and the name of a job."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.errors import UserError
from algorun_client.request.model import TaskAddress
from algorun_client.request.names import checked, job_name, suggested
from tests.conftest import examples

SAGEMAKER = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "a..b", "x" * 49, "é", ".."])
def test_a_wrong_name_is_refused_with_a_right_one(name):
    with pytest.raises(UserError) as error:
        checked("--task", name)
    assert checked("--task", error.value.fix.removeprefix("--task "))


@given(st.text(max_size=80), st.text(max_size=80), st.integers(1, 99_999))
@examples(300)
def test_every_job_has_a_name_that_sagemaker_takes(project, task, number):
    address = TaskAddress(bucket="b", project=checked("", suggested(project)), task=checked("", suggested(task)))
    assert SAGEMAKER.fullmatch(job_name(address, number))


def test_tasks_of_the_same_name_in_two_buckets_have_jobs_of_two_names():
    one, two = (TaskAddress(bucket=bucket, project="p", task="t") for bucket in ("a", "b"))
    assert job_name(one, 1) != job_name(two, 1)
    assert job_name(one, 1) == job_name(one, 1)
    assert job_name(one, 1).startswith("p-t-0001-")
