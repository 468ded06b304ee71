"""The harness of `make test PART=gpu`: refusals, limits, the page. No GPU is needed, and none is feigned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from algorun.common.errors import UserError
from tests.conftest import ROOT
from tests.gpu import harness, machine, page
from tests.gpu.__main__ import main
from tests.gpu.checks import ALL
from tests.gpu.harness import Row
from tests.gpu.interpreter import package_folders
from tests.gpu.session import Check, Figure, Late, Seen, Session, Skip, Stop, Wrong
from tests.gpu.sizes import CPU

from .test_gpu_checks import H100

HOST = replace(H100, kind="cpu", names=())
WHEN = "2026-11-22, abc1234"
SUM = Row("step", "a title", "passed", 3.0, "a | note", (Figure("images/s", "100", "of a model"),), WHEN)


def session(folder: Path, deadline: float = 60.0) -> Session:
    found = Session(HOST, CPU, Path(sys.executable), folder, "check")
    found.deadline = time.monotonic() + deadline
    return found


def test_a_stop_while_a_job_starts_takes_it_along(tmp_path, monkeypatch):
    started = []

    class Stopped(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Stopped)
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with pytest.raises(SystemExit, match="143"):
            session(tmp_path).python_program("-c", "import time; time.sleep(60)", base=tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started[0].poll() is not None


# Machines without a GPU


def test_a_python_without_algorun_lists_the_checks():
    """-S: without the packages of this environment."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "tests.gpu", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(ALL)


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_ends_it_at_once_with_one_line():
    code = "import sys; from tests.gpu.__main__ import main\ntry:\n    main([])\nfinally:\n    sys.stdout.write(str('torch' in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "False"
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 69
    assert done.stdout == ""
    assert (
        done.stderr
        == "error: gpu-test: there is no NVIDIA GPU on this machine (/dev/nvidia*); fix: run it on a machine with one\n"
    )


def test_a_gpu_without_a_torch_for_it_is_an_error(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    with pytest.raises(UserError, match="is not installed; fix: make test PART=gpu GPU_PYTHON="):
        machine.refuse_without_gpu([], str(tmp_path))
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("cuda: Optional[str] = None\n")
    with pytest.raises(UserError, match="is built without CUDA"):
        machine.refuse_without_gpu([str(tmp_path)], str(tmp_path))
    (tmp_path / "torch/version.py").write_text("cuda: Optional[str] = '13.0'\n")
    machine.refuse_without_gpu([str(tmp_path)], str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES is empty"):
        machine.refuse_without_gpu([str(tmp_path)], str(tmp_path))


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["--cpu"], "add --page FILE --keep FILE"),
        (["--cpu", "--page", "docs/gpu.md", "--keep", "x"], "docs/gpu.md holds what was seen on GPUs"),
        (["--only", "dpd"], "no check is called dpd; allowed: doctor, plan, ddp"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_wrong_options_name_what_is_allowed(argv, what, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError) as error:
        main(argv)
    assert what in str(error.value)


def test_the_packages_are_those_of_this_interpreter():
    folders = package_folders()
    assert any((Path(folder) / "torch").is_dir() for folder in folders)
    assert str(ROOT) not in folders
    assert not any((Path(folder) / "os.py").exists() for folder in folders)


# Checks and their time


def run_one(folder, run, **more):
    return harness.run(session(folder), [Check("check", "title", run, 60, **more)], lambda row: None)[0]


def raising(error):
    def run(found):
        (found.base() / "log.txt").write_text("words")
        raise error

    return run


def test_a_check_passes_is_skipped_or_fails_and_a_failed_one_keeps_its_logs(tmp_path):
    folder = tmp_path / "session"
    assert run_one(folder, lambda found: Seen("good")).state == "passed"
    skipped = run_one(folder, raising(Skip("needs a second GPU")))
    assert (skipped.state, skipped.note) == ("skipped", "needs a second GPU")
    assert not (folder / "check").exists()
    failed = run_one(folder, raising(Wrong("exit code 1")))
    kept = tmp_path / "gpu-test-logs" / "check-job.txt"
    assert (failed.state, failed.note) == ("failed", f"exit code 1 (the whole output: {kept})")
    assert kept.read_text() == "words"
    assert not (folder / "check").exists()
    assert run_one(folder, raising(ValueError("x"))).note.startswith("the check itself broke: ValueError: x")


def test_what_a_machine_lacks_skips_a_check_with_the_reason(tmp_path):
    assert run_one(tmp_path, raising(Wrong("")), gpus=2).note == "needs 2 GPUs; this machine has none"
    absent = run_one(tmp_path, raising(Wrong("")), modules=("no_such_module",))
    assert absent.note == "needs no_such_module, which this Python does not have"


def test_checks_that_do_not_fit_into_the_time_are_skipped(tmp_path):
    checks = [Check("late", "title", raising(Wrong("")), 60)]
    row = harness.run(session(tmp_path), checks, lambda row: None, budget_s=1.0)[0]
    no_time = ("skipped", "no time is left of the 20 minutes; run it alone: --only late")
    assert (row.state, row.note) == no_time
    short = harness.run(session(tmp_path), [Check("late", "title", raising(Late("no end")), 60)], id, budget_s=30.0)[0]
    assert (short.state, short.note) == no_time
    whole = harness.run(session(tmp_path), [Check("late", "title", raising(Late("no end")), 20)], id, budget_s=30.0)[0]
    assert whole.state == "failed"


def test_a_job_that_outlasts_its_check_is_ended(tmp_path):
    found = session(tmp_path, deadline=0.5)
    with pytest.raises(Wrong, match="no end within the check's time; the last lines: begun (\\d+)") as wrong:
        found.python_program(
            "-u", "-c", "import os, time; print('begun', os.getpid()); time.sleep(60)", base=found.base()
        )
    pid = int(str(wrong.value).split()[-1])
    assert not os.path.exists(f"/proc/{pid}")


def test_a_stop_is_sent_after_the_word(tmp_path):
    code = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\ntime.sleep(0.2)\nprint('ready')\ntime.sleep(60)"
    found = session(tmp_path)
    done = found.python_program("-u", "-c", code, base=found.base(), stop=Stop("ready", 0.1))
    assert (done.code, done.text) == (7, "ready\n")


# The page


def test_the_block_is_replaced_and_the_rest_of_the_page_stays(tmp_path):
    file = tmp_path / "gpu.md"
    file.write_text(f"# GPUs\n\nabove\n\n{page.BEGIN}\n\nold\n\n{page.END}\n\nbelow\n")
    page.write(file, "new")
    page.write(file, "newer")
    assert file.read_text() == f"# GPUs\n\nabove\n\n{page.BEGIN}\n\nnewer\n\n{page.END}\n\nbelow\n"
    page.write(tmp_path / "none.md", "first")
    assert (tmp_path / "none.md").read_text() == f"# GPUs\n\n{page.BEGIN}\n\nfirst\n\n{page.END}\n"


def test_the_tables_name_device_versions_date_and_commit():
    block = page.render(H100, [SUM], ["step", "memory"])
    assert block.startswith(
        "Measured on 1 x NVIDIA H100 80GB HBM3 (79.0 GiB, 78.0 free); driver 580.159.04, torch 2.11.0+cu130, "
        "CUDA 13.0, NCCL 2.28.9, transformers 5.17.0, Python 3.12.3, Linux 6.18, algorun 0.1.0.\n\n"
        "Checks: 1 passed, 0 failed, 0 skipped. Not run here: `memory`. Each row"
    )
    assert "| images/s | 100 | of a model | 2026-11-22, abc1234 |" in block
    assert "| `step` | a title | passed | 3.0 | a \\| note | 2026-11-22, abc1234 |" in block


def test_a_figure_of_the_cpu_never_looks_like_one_of_a_gpu():
    block = page.render(HOST, [SUM], ["step"])
    assert block.startswith("**Measured on a CPU. These figures say nothing about a GPU.**")
    assert "| images/s | CPU: 100 |" in block
    assert "| CPU: 3.0 |" in block


def test_results_of_the_same_machine_and_versions_are_kept_with_the_commit_that_they_are_of(tmp_path):
    file, names = tmp_path / "kept.json", [check.name for check in ALL]
    page.kept(file, H100, [SUM], names)
    ddp = replace(SUM, name="ddp", figures=())
    later = replace(H100, free_bytes=1, linux="6.19", algorun="0.3.0", commit="def5678")
    assert page.kept(file, later, [ddp], names) == [ddp, SUM]
    assert page.kept(file, replace(H100, torch="2.12.0"), [ddp], names) == [ddp]
    page.kept(file, H100, [SUM], names)
    assert page.kept(file, replace(H100, transformers="absent"), [ddp], names) == [ddp]
    file.write_text("{")
    assert page.kept(file, H100, [SUM], names) == [SUM]


def test_the_page_of_this_repository_can_be_written_and_has_no_figure_of_a_cpu():
    text = (ROOT / "docs/gpu.md").read_text()
    block = text.split(page.BEGIN)[1].split(page.END)[0]
    assert "Nothing has been measured yet." in block or "NVIDIA" in block
    assert f"| {page.CPU_MARK}" not in block  # at the beginning of a cell
