"""Inside a rank: its steps are counted, whoever makes them, and nothing of the user's is disturbed."""

from __future__ import annotations

import time

import pytest

from algorun.common.errors import UserError
from algorun.host.measuring.step_counter import RECORD, RECORD_BYTES, StepBoard
from algorun.host.ranks import stacks
from algorun.inside import rank_steps
from algorun.timing.activities import NAMES

from .rank_processes import LIMIT_S, USER, RankProcesses, ended, eventually, line, write_light_torch


def test_steps_their_time_and_the_longest_pause(light):
    before = time.monotonic()
    process = light.start(USER + "import time\nfor pause in (0, .3, 0, 0):\n    time.sleep(pause)\n    step()\n")
    ended(process)
    steps = light.board.read(0)
    assert (steps.count, steps.pid) == (4, process.pid)
    assert before < steps.last_at < time.monotonic()
    assert 0.3 <= steps.longest_s < time.monotonic() - before
    assert before < steps.torch_at < steps.first_step_at < steps.last_at


def test_a_script_may_say_what_it_has_trained_on(light):
    code = (
        "import algorun\nalgorun.trained_on(9)\n"
        + USER
        + "for _ in range(4):\n    step()\n    algorun.trained_on(8, 512)\n"
    )
    ended(light.start(code))
    steps = light.board.read(0)
    assert (steps.count, steps.samples, steps.tokens, steps.flops) == (4, 32.0, 2048.0, 0.0)


def test_evaluations_and_saves_before_the_first_step_and_after_the_last_are_no_part_of_training(light):
    code = (
        "import time\n" + USER + "def spend(name, seconds):\n"
        "    import sys\n"
        "    said = sys.modules['algorun_rank_steps'].activities\n"
        "    said.begin(name)\n    time.sleep(seconds)\n    said.end()\n"
        "spend('evaluation', 0.3)\nstep()\nspend('evaluation', 0.1)\nspend('saving', 0.1)\nstep()\n"
        "spend('saving', 0.3)\n"
    )
    ended(light.start(code))
    steps = light.board.read(0)
    assert 0.2 <= steps.beside < 0.5  # 0.8 with those before and after
    assert steps.first_step_at + 0.2 <= steps.step_at <= time.monotonic() - 0.3


def test_each_local_rank_has_a_record_of_its_own(tmp_path):
    ranks = RankProcesses(tmp_path, 3)
    write_light_torch(ranks.code)
    try:
        ended(ranks.start(USER + "step()\nstep()\n", local_rank=2))
        ended(ranks.start(USER + "step()\n", local_rank=1))
        assert [ranks.board.read(index).count for index in range(3)] == [0, 1, 2]
    finally:
        ranks.close()


def test_the_finder_is_there_once_and_gone_with_torch(light):
    """The .pth file of a virtual environment runs twice."""
    (light.code / "torch" / "_dynamo.py").touch()
    code = (
        "import sys\ncount = lambda: sum(type(f).__name__ == 'Finder' for f in sys.meta_path)\n"
        "print(count())\nimport torch.optim.optimizer as o\n"
        "print(count(), len(o.hooks), o.__loader__.__dict__.keys() & {'exec_module'}, 'mmap' in sys.modules)\n"
        "import torch._dynamo\nprint(count())\n"
    )
    assert ended(light.start(code)).split("\n")[:3] == ["1", "1 1 set() False", "0"]


def test_nothing_of_ours_can_be_shadowed(light):
    for name in ("mmap", "struct", "faulthandler", "json", "signal", "socket", "typing", "types"):
        (light.code / f"{name}.py").write_text("raise SystemExit('of the user')")
    process = light.start(
        USER + "step()\ntry:\n    import mmap\nexcept SystemExit as error:\n    print(error, flush=True)\ninput()\n",
        PYTHONPATH=str(light.code),
    )
    line(process, "of the user")
    assert light.board.read(0).count == 1
    assert 'entry.py", line' in light.stack(process.pid)


def test_a_script_with_an_excepthook_of_its_own_is_counted(light):
    process = light.start("import sys\nsys.excepthook = lambda *_: print('mine')\n" + USER + "step()\nraise KeyError\n")
    out, _ = process.communicate(timeout=LIMIT_S)
    assert out == "mine\n"
    assert light.board.read(0).count == 1


def test_without_the_supervisor_s_file_a_script_runs_all_the_same(light):
    (light.run / "steps").unlink()
    assert ended(light.start(USER + "step()\nprint('fine')\n")) == "fine\n"


def test_a_shell_script_s_programs_count_on_and_the_shell_is_left_alone(light):
    (light.code / "part.py").write_text(USER + "step()\nstep()\nprint('done', flush=True)\ninput()\n")
    process = light.start("python part.py\npython part.py\necho shell lives\n", name="entry.sh")
    line(process, "done")
    assert not stacks.ask(process.pid, str(light.run))
    steps = light.board.read(0)
    assert steps.count == 2
    assert steps.pid != process.pid
    eventually(lambda: 'part.py", line 5 in <module>' in light.stack(steps.pid))  # the line before it is still at work
    process.stdin.write("\n")
    process.stdin.flush()
    line(process, "done")
    assert light.board.read(0).count == 4
    assert not stacks.ask(steps.pid, str(light.run))  # it has ended, its file is still there
    process.stdin.write("\n")
    assert ended(process) == "shell lives\n"


def test_a_child_s_steps_are_signs_of_life_but_its_parent_counts(light):
    code = USER + (
        "import os, time\nstep()\nprint(os.getpid(), flush=True)\ninput()\n"
        "child = os.fork()\nif not child:\n    for _ in range(50): step()\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    process = light.start(code)
    line(process, str(process.pid))
    first = light.board.read(0)
    process.stdin.write("\n")
    process.stdin.flush()
    child = int(process.stdout.readline())
    steps = light.board.read(0)
    assert (steps.count, steps.pid) == (1, process.pid)
    assert steps.last_at > first.last_at
    assert "in <module>" in light.stack(child)
    assert stacks.read_stacks(process.pid, str(light.run)) == ""


def test_a_board_that_cannot_be_made_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match=r"TMPDIR: .*/absent/steps: No such file or directory; fix: name a folder"):
        StepBoard(str(tmp_path / "absent"), 2)


ACTIVITIES = """
import os, sys, time
activities = sys.modules["algorun_rank_steps"].activities
activities.begin("data")
time.sleep(.05)
activities.begin("saving")
time.sleep(.2)
activities.end()
activities.end()
activities.end()
if os.fork() == 0:
    activities.begin("evaluation")
    time.sleep(.05)
    activities.end()
    os._exit(0)
os.wait()
activities.begin("forward")
print("forward", flush=True)
input()
activities.end()
"""


def test_an_activity_within_another_interrupts_it_and_one_that_runs_counts_already(light):
    process = light.start(USER + ACTIVITIES)
    line(process, "forward")
    begun = time.monotonic()
    time.sleep(0.1)
    seen = dict(zip(NAMES, light.board.read(0).activities, strict=True))
    process.stdin.write("\n")
    process.stdin.flush()
    ended(process)
    assert seen["saving"] >= 0.2
    assert 0.05 <= seen["data"] < 0.2
    assert 0.1 <= seen["forward"] <= time.monotonic() - begun + 5
    assert seen["evaluation"] == seen["backward"] == 0  # a forked process says nothing for its parent
    after = dict(zip(NAMES, light.board.read(0).activities, strict=True))
    assert after["forward"] >= seen["forward"]
    assert after["saving"] == seen["saving"]


def test_the_names_of_activities_are_those_of_the_launcher():
    assert rank_steps.ACTIVITIES == NAMES
    assert rank_steps.RECORD == RECORD_BYTES
    assert (
        RECORD.size
        == 8 * (rank_steps.PROGRESS_AT + 1)
        == 8 * (rank_steps.BESIDE + 3)
        == 8 * (rank_steps.FLOPS + 6)
        == 8 * (rank_steps.GROUP + 10)
        == 8 * (rank_steps.ACTIVITY + 12)
        == 8 * (rank_steps.FIRST_ACTIVITY + len(NAMES) + 12)
    )


DDP = """
import sys
from algorun.inside.stop_flag import StopFlag
from algorun_train.jobs import ddp
words = "--width 16 --depth 1 --epochs 1 --image-size 8 --batch-size 64 --checkpoint-dir c --model-dir m --output-dir o"
ddp.main(words.split(), StopFlag())
"""


def test_the_bundled_ddp_says_what_it_does(tmp_path):
    ranks = RankProcesses(tmp_path)
    try:
        begun = time.monotonic()
        ended(ranks.start(DDP, SAGEMAKER_BASE_DIR=str(tmp_path)))
        wall_s = time.monotonic() - begun
        seen = dict(zip(NAMES, ranks.board.read(0).activities, strict=True))
    finally:
        ranks.close()
    assert all(seen[name] > 0 for name in NAMES), seen
    assert sum(seen.values()) < wall_s
