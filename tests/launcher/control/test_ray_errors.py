"""Exceptions of a Ray driver, with the texts of Ray 2.60.0."""

from __future__ import annotations

import pytest

from algorun.control.failures import ray_errors
from algorun.control.failures.failure import Failure, Raised
from algorun.control.failures.peer_errors import Distance
from algorun.control.member.rank_failures import RankFailures

HOSTS = {"10.0.0.1": "algo-1", "10.0.0.2": "algo-2"}
SITE = "/opt/venv/lib/python3.11/site-packages/ray/_private"
DRIVER = f"""Traceback (most recent call last):
  File "/opt/ml/code/driver.py", line 22, in <module>
    ray.get(h.remote())
  File "{SITE}/auto_init_hook.py", line 22, in auto_init_wrapper
    return fn(*args, **kwargs)
  File "{SITE}/worker.py", line 1053, in get_objects
    raise value.as_instanceof_cause()
"""
NESTED = """\x1b[36mray::h()\x1b[39m (pid=15435, ip=10.0.0.1)
  File "/opt/ml/code/driver.py", line 21, in h
    def h(): return ray.get(g.remote())
                    ^^^^^^^^^^^^^^^^^^^
           ^^^^^^^^^^^^^^^^^^^^^
ray.exceptions.RayTaskError(ValueError): \x1b[36mray::g()\x1b[39m (pid=15436, ip=10.0.0.2)
  File "/opt/ml/code/driver.py", line 19, in g
    def g(): raise ValueError("boom")
             ^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: boom"""
METHOD = """\x1b[36mray::A.boom()\x1b[39m (pid=15605, ip=10.0.0.2, actor_id=cbda350bedede3b6975fd24403000000, repr=<driver.A object at 0x7f7244630250>)
           ^^^^^^^^^^^^^^^^^^^^^
  File "/opt/ml/code/driver.py", line 14, in boom
    def boom(self): raise ValueError("boom\\nline 2")
                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: boom
line 2"""
CREATION = """The actor died because of an error raised in its creation task, \x1b[36mray::A.__init__()\x1b[39m (pid=7, ip=10.0.0.2, actor_id=cb, repr=<A>)
  File "/opt/ml/code/driver.py", line 3, in __init__
    open("nothing")
FileNotFoundError: [Errno 2] No such file or directory: 'nothing'"""
CHAIN = """ray::f() (pid=8, ip=10.0.0.9)
  File "/opt/ml/code/driver.py", line 3, in f
    records[7]
KeyError: 7

The above exception was the direct cause of the following exception:

ray::f() (pid=8, ip=10.0.0.9)
  File "/opt/ml/code/driver.py", line 5, in f
    raise BadRecord from error
driver.BadRecord"""
SNIPPETS = """Training failed due to worker errors:
[Rank 1 Error Snippet]:
Traceback (most recent call last):
  File "/opt/ml/code/driver.py", line 20, in train_func
    raise ValueError("bad batch 2")
ValueError: bad batch 2
[Rank 2 Error Snippet]:
Traceback (most recent call last):
  File "/opt/ml/code/driver.py", line 21, in train_func
ValueError: bad batch 3"""
ACTOR_DIED = """The actor died unexpectedly before finishing this task.
	class_name: A
	actor_id: 91a4a1b45335217eae052fbb04000000
	pid: 15747
	namespace: 8eab0ba3-0b03-45f0-bff0-33e1e00b3320
	ip: 10.0.0.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer"""
NODE_DIED = ACTOR_DIED.replace("its worker process has died", "its node has died")
UNAVAILABLE = "The actor e2e1 is unavailable: The actor is temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14."


def failure(kind: str, text: str) -> Failure:
    """The failure of a driver with this exception."""
    raised = Raised(0, 4711, 1.0, f"ray.exceptions.{kind}", text[:4096], f"{DRIVER}ray.exceptions.{kind}: {text}")
    ranks = RankFailures("algo-1")
    ranks.begin({0: 0})
    found = ranks.raised(2.0, 0, ray_errors.plain(raised, HOSTS), is_rank=True)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("RayTaskError(ValueError)", NESTED, "ValueError: boom (ray::g, pid 15436 on algo-2)"),
        ("RayTaskError(ValueError)", METHOD, "ValueError: boom (ray::A.boom, pid 15605 on algo-2)"),
        ("ActorDiedError", CREATION,
         "FileNotFoundError: [Errno 2] No such file or directory: 'nothing' (ray::A.__init__, pid 7 on algo-2)"),
        ("RayTaskError(BadRecord)", CHAIN, "driver.BadRecord: (ray::f, pid 8 on 10.0.0.9)"),
        ("ActorDiedError", ACTOR_DIED,
         "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task. (A, pid 15747 on algo-2)"),
        ("WorkerCrashedError", "The worker died unexpectedly while executing this task.",
         "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task."),
        ("OutOfMemoryError",
         "Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.2, ID: 5b) where the task "
         "(task ID: 3c, name=grow, pid=95, memory used=1.2GB) was running was 22.1GB / 23.5GB (0.95)",
         "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory. (grow, pid 95 on algo-2)"),
    ],
)  # fmt: skip
def test_the_exception_comes_first_and_the_worker_and_its_host_are_named(kind, text, message):
    assert failure(kind, text).message == message


def test_frames_of_the_driver_and_of_each_worker_make_one_traceback():
    assert failure("RayTaskError(ValueError)", NESTED).traceback == (
        "Traceback (most recent call last):\n"
        '  File "/opt/ml/code/driver.py", line 22, in <module>\n'
        "    ray.get(h.remote())\n"
        "  [ray::h, pid 15435 on algo-1]\n"
        '  File "/opt/ml/code/driver.py", line 21, in h\n'
        "    def h(): return ray.get(g.remote())\n"
        "  [ray::g, pid 15436 on algo-2]\n"
        '  File "/opt/ml/code/driver.py", line 19, in g\n'
        '    def g(): raise ValueError("boom")\n'
        "ValueError: boom"
    )


@pytest.mark.parametrize(
    ("kind", "text", "distance"),
    [
        ("RayTaskError(ValueError)", NESTED, Distance.CAUSE),
        ("ActorDiedError", ACTOR_DIED, Distance.CAUSE),
        ("ActorDiedError", NODE_DIED, Distance.PEER),
        ("ActorUnavailableError", UNAVAILABLE, Distance.PEER),
    ],
)
def test_a_node_that_has_gone_is_another_failure_s_consequence(kind, text, distance):
    assert failure(kind, text).distance is distance


def test_the_exception_of_ray_train_s_first_worker_is_the_failure():
    traceback = f"{DRIVER}ray.train.WorkerGroupError: {SNIPPETS}"
    raised = ray_errors.plain(Raised(0, 1, 1.0, "ray.train.WorkerGroupError", SNIPPETS, traceback), HOSTS)
    assert (raised.type, raised.message) == ("ValueError", "bad batch 2 (worker 1 of Ray Train)")
    assert raised.traceback.splitlines()[1:] == [
        '  File "/opt/ml/code/driver.py", line 22, in <module>',
        "    ray.get(h.remote())",
        '  File "/opt/ml/code/driver.py", line 20, in train_func',
        '    raise ValueError("bad batch 2")',
        "ValueError: bad batch 2",
    ]


def test_advice_that_stands_in_every_text_is_left_out():
    assert "common causes" not in failure("ActorDiedError", ACTOR_DIED).text()
    assert 'File "/opt/ml/code/driver.py"' in failure("ActorDiedError", ACTOR_DIED).text()


def test_what_cannot_be_understood_stays_as_it_is():
    for text in ("", "ray::f() (pid=8, ip=10.0.0.9)", "ray::f() (pid=8, ip=10.0.0.9)\n  File"):
        raised = Raised(0, 1, 0.0, "ray.exceptions.RayTaskError", text, "no traceback")
        assert ray_errors.plain(raised, HOSTS).type == raised.type
