"""The line to quote of a program that ended by itself."""

from __future__ import annotations

import pytest

from algorun.control.failures.last_words import last_words, telling, told_on_stdout
from algorun.control.member.rank_failures import RankFailures

TQDM = " 10%|█         | 3/30 [00:00<00:04,  6.52it/s]"
SUMMARY = """\
KeyError: 'tokenizer has no pad token'
E0101 00:00:00.000000 12 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 13)
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
inner.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : vm
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 13)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"""
PANEL = """\
Usage: train.py [OPTIONS]
Try 'train.py --help' for help.
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ Invalid value for '--lr': Input should be a valid number, unable to parse    │
│ string as a number                                                           │
╰──────────────────────────────────────────────────────────────────────────────╯"""


@pytest.mark.parametrize(
    ("tail", "told"),
    [
        (f"quota of /fsx is used up\n{TQDM}", "quota of /fsx is used up"),
        (f"{TQDM}ERROR:root:quota of /fsx is used up\n\n{TQDM}", "ERROR:root:quota of /fsx is used up"),
        (f"no data\nEpoch 3: {TQDM.strip()}\n30it [00:04, 6.52it/s]", "no data"),
        ("no data\n12/100 [===>......] - ETA: 3s - loss: 0.1", "no data"),
        ("no data\n 10/10 ━━━━━━━━━━━━━━━━━━━━ 0s 3ms/step - loss: 0.1", "no data"),
        ("no data\nDownloading ━━━━━━━━━╸━━━━━ 12.3/45.6 MB 3.4 MB/s 0:00:10", "no data"),
        ("no data\n[##########----------]  50%  00:00:02", "no data"),
        (PANEL, "Invalid value for '--lr': Input should be a valid number, unable to parse string as a number"),
        ("bad record\n+------+\n======\n\n   \n* * *", "bad record"),
        (SUMMARY, "KeyError: 'tokenizer has no pad token'"),
        ("ls: cannot access '/x'\nTraceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n"
         "subprocess.CalledProcessError: Command '['ls', '/x']' returned non-zero exit status 2.", "ls: cannot access '/x'"),
        ("disk quota\nException ignored in: <function Loader.__del__ at 0x7f>\nTraceback (most recent call last):\n"
         "  File \"l.py\", line 3, in __del__\nAttributeError: 'NoneType' object has no attribute 'close'", "disk quota"),
        ("no data\n/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be "
         "1 leaked semaphore objects\n  warnings.warn('resource_tracker: There appear to be %d '", "no data"),
        ("/usr/bin/env: ‘bash\\r’: No such file or directory\n/usr/bin/env: use -[v]S to pass options in shebang lines",
         "/usr/bin/env: ‘bash\\r’: No such file or directory"),
        ("- item 3 has no label", "- item 3 has no label"),  # a list is no border
        ("loss | 3 | nan", "loss | 3 | nan"),
        ("100% of the samples are bad [see docs]", "100% of the samples are bad [see docs]"),
        (TQDM, TQDM.strip()),
    ],
)  # fmt: skip
def test_the_last_meaningful_line_is_quoted(tail, told):
    assert last_words(tail) == told


def test_progress_bars_take_no_room_in_the_text():
    assert telling("\n".join([TQDM] * 50 + [f"{TQDM}ERROR: no data", TQDM])) == "ERROR: no data"


@pytest.mark.parametrize(
    ("stderr", "printed", "stdout_tells"),
    [
        ("", "FATAL: config key 'optimizer' is missing\n", True),
        ("UserWarning: old format\n", "UserWarning: old format\nFATAL: no optimizer\n", True),
        ("cannot open x\n", "cannot open x\nloading\n", False),  # C's stdout comes late, at the end of the process
        ("error: old\n", "error: old\n" + "step\n" * 20 + "FATAL: no optimizer\n", True),
        ("no data\n", "epoch 1\nno data\n", False),
        ("", "", False),
    ],
)  # fmt: skip
def test_words_on_stdout_count_if_stderr_has_no_error_at_the_end(stderr, printed, stdout_tells):
    assert told_on_stdout(stderr, printed) is stdout_tells


def message(stderr: str, printed: str, code: int = 3) -> str:
    ranks = RankFailures("algo-1")
    ranks.begin({0: 0})
    return ranks.exited(0.0, 0, code, stderr, printed).message


def test_a_program_without_any_error_is_quoted_with_that_said():
    assert message("", "step 3 loss 0.1\n") == "no message on stderr; last on stdout: step 3 loss 0.1"
    assert message("", "") == "no message on stderr"
    assert message("", "FATAL: no optimizer\n") == "FATAL: no optimizer"


def test_no_escape_of_a_rank_is_quoted():
    assert message("\x1b[31mboom\x1b[0m \x1b]0;owned\x07\x1b[2J\x07\x08x\n", "") == "boom x"


def test_a_failure_that_is_told_late_is_as_old_as_its_end():
    ranks = RankFailures("algo-1")
    ranks.begin({0: 0})
    failure = ranks.exited(5.0, 0, 3, "boom", age_s=0.5)
    assert failure is not None
    assert failure.age_s == 0.5
