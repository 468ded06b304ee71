"""A driver of Ray that waits: whether the job stands still is a question of all workers on all hosts."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tests.conftest import algorun, needs_ray

pytestmark = [pytest.mark.slow, needs_ray]
LEAN = {"ALGORUN_RAY_OBJECT_STORE_MB": "100", "RAY_enable_worker_prestart": "0", "ALGORUN_START_S": "120"}

DRIVER = """
import sys, time
import ray

ray.init()

@ray.remote
class Holder:
    def stand(self):
        time.sleep(1000)

    def ready(self):
        pass

    def hold_up(self):
        # Another actor, which has done its work, waits for the next call meanwhile.
        other = Holder.options(scheduling_strategy="SPREAD").remote()
        ray.get(other.ready.remote())
        self.stand()

    def work(self):
        end = time.monotonic() + 25
        while time.monotonic() < end:
            pass

ray.get(getattr(Holder.remote(), sys.argv[1]).remote())
"""


def driving(method, folder, marker):
    (folder / "driver.py").write_text(DRIVER)
    # Two nodes start on a machine of two cores, beside those of the other run.
    return algorun(
        *("simulate", "-j", "2x1", "--engine", "ray", "driver.py", method),
        cwd=folder, timeout=300, ALGORUN_TEST=marker, ALGORUN_HANG_S="6", **LEAN,
    )  # fmt: skip


@pytest.mark.parametrize("begun", [partial(driving, "stand")], indirect=True)
def test_a_driver_whose_actor_sleeps_hangs(begun):
    assert begun.code == 67, begun.text
    (failure,) = {begun.failure(host) for host in ("algo-1", "algo-2")}
    assert "no sign of progress for" in failure
    assert "called at driver.py:26 in <module>" in failure, failure
    assert re.search(r"; ray::Holder.stand on algo-[12]: stand at driver.py:10: time.sleep\(1000\)", failure), failure


@pytest.mark.parametrize("begun", [partial(driving, "hold_up")], indirect=True)
def test_the_actor_that_sleeps_is_named_and_not_the_one_without_a_task(begun):
    assert begun.code == 67, begun.text
    (failure,) = {begun.failure(host) for host in ("algo-1", "algo-2")}
    assert re.search(r"; ray::Holder.hold_up on algo-[12]: stand at driver.py:10: time.sleep\(1000\)", failure), failure


@pytest.mark.parametrize("begun", [partial(driving, "work")], indirect=True)
def test_an_actor_that_computes_in_silence_is_no_hang(begun):
    assert begun.code == 0, begun.text
