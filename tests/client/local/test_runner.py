"""The runner of a local job gives up a host that nothing ends."""

from __future__ import annotations

import signal

import pytest

from algorun_client.local import job_description, runner
from algorun_client.local.job_folder import JobFolder, LocalSettings
from algorun_client.local.job_record import LocalJobRecord
from algorun_client.local.runner import Runner, Why
from algorun_client.request.model import Kind
from tests.client.local.local_jobs import processing


class Immortal:
    """One of two hosts has ended; the other one waits for a disk that does not answer."""

    have_ended = False

    def __init__(self, code: int) -> None:
        self.codes, self.signals = {"algo-1": code}, list[int]()

    def pump(self, timeout_s: float) -> None:
        if len(self.signals) > 50:
            pytest.fail("it waits for ever")

    def signal(self, number: int) -> None:
        self.signals.append(number)


@pytest.mark.parametrize("why", [None, Why.STOP, Why.INTERRUPTED])
def test_a_host_that_sigkill_does_not_end_is_not_waited_for(tmp_path, monkeypatch, capsys, why):
    """How the job ended stays known; but no second attempt begins beside it."""
    request = processing("job", hosts=2)
    made, hosts = Runner.__new__(Runner), Immortal(0 if why else 1)
    made._folder = JobFolder.of(tmp_path, Kind.PROCESSING, "job")
    made._settings = LocalSettings(linger_s=0, stop_grace_s=0)
    made._job = job_description.described(Kind.PROCESSING, request)
    monkeypatch.setattr(runner, "DIE_S", 10.0, raising=False)
    monkeypatch.setattr(runner.time, "monotonic", iter(range(1000)).__next__)
    monkeypatch.setattr(made, "_why", lambda now: why)
    monkeypatch.setattr(made, "_save", lambda record: None)
    made._record = LocalJobRecord.new(0.0)
    if why is Why.INTERRUPTED:
        with pytest.raises(TimeoutError, match="algo-2: no end 10 s after SIGKILL"):
            made._wait(hosts)
    else:
        assert made._wait(hosts) is why
        assert capsys.readouterr().err == "algo-2: no end 10 s after SIGKILL\n"
    assert hosts.signals[0] == (signal.SIGTERM if why else signal.SIGKILL)
