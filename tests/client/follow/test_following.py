"""Following a job from a command."""

from __future__ import annotations

import pytest

from algorun_client.aws.api import Target
from algorun_client.connection import LOCAL, Site
from algorun_client.follow.following import follow_job
from algorun_client.request.model import Kind


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_before_the_first_answer_prints_the_way_back(capsys, as_json):
    """boto3's clients and rich take a second to load: a job exists already."""

    def following() -> Target:
        raise KeyboardInterrupt

    connection = Site(target=None, following=following, session=None, pace=LOCAL, options=" --region r")  # type: ignore[arg-type]
    assert follow_job(connection, Kind.TRAINING, "job-0001-aaaaaa", as_json=as_json) == 130
    said = capsys.readouterr()
    assert "algorun logs -f job-0001-aaaaaa --region r" in said.out + said.err
    assert "detached" in said.out + said.err
