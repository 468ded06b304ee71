"""Inside a rank: our shim reports exceptions, and is otherwise not there, whatever the user's folder holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import timeit
from pathlib import Path

import pytest

from tests.conftest import FAILS_ALONE, ROOT, algorun, clean_environ

HOSTILE = [
    "json",
    "socket",
    "types",
    "traceback",
    "algorun",
    "algorun_train",
    "launcher",
    "train",
    "logging",
    "signal",
    "typing",
    "_algorun",
    "config",
]


def job(base: Path, code: dict[str, str], program: str, **hyperparameters: str) -> dict[str, str]:
    """A job folder with the user's code; the environment that names it."""
    (base / "code").mkdir(parents=True)
    for name, text in code.items():
        (base / "code" / name).write_text(text)
    (base / "input" / "config").mkdir(parents=True)
    (base / "input" / "config" / "resourceconfig.json").write_text('{"hosts": ["algo-1"], "current_host": "algo-1"}')
    (base / "input" / "config" / "hyperparameters.json").write_text(
        json.dumps({"sagemaker_program": json.dumps(program), **hyperparameters})
    )
    return {"SAGEMAKER_BASE_DIR": str(base), **FAILS_ALONE}


def failure(base: Path) -> str:
    return (base / "output" / "failure").read_text()


def test_a_hostile_folder_shadows_nothing_of_ours(tmp_path, nothing_left):
    code = {f"{name}.py": f"raise SystemExit('{name} of the user was imported')" for name in HOSTILE}
    code["mine.py"] = "VALUE = 3"
    code["entry.py"] = "import sys, mine\nprint('argv', sys.argv[1:])\nraise RuntimeError(f'value {mine.VALUE}')\n"
    environ = job(tmp_path, code, "entry.py", lr="0.1")
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **environ)
    assert done.code == 1, done.text
    assert "[0 algo-1] argv ['--lr', '0.1']" in done.out
    text = failure(tmp_path)
    assert text.startswith("exception: rank 0 on algo-1, exit 1, attempt 1: RuntimeError: value 3")
    assert 'raise RuntimeError(f"value' in text or "raise RuntimeError(f'value" in text
    assert 'entry.py", line 3, in <module>' in text


def test_a_json_of_the_user_is_what_the_user_imports(tmp_path, nothing_left):
    environ = job(tmp_path, {"json.py": "MINE = 1", "entry.py": "import json\nprint('mine', json.MINE)"}, "entry.py")
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **environ)
    assert done.code == 0, done.text
    assert "[0 algo-1] mine 1" in done.out


def test_bundled_entrypoints_are_not_shadowed(tmp_path, nothing_left):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__init__.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "torch.py").write_text("raise SystemExit('shadowed')")
    done = algorun("run", "ddp", "--no-such-option", "1", cwd=tmp_path, ALGORUN_TEST=nothing_left,
                   SAGEMAKER_BASE_DIR=str(tmp_path / "ml"), PYTHONPATH=str(tmp_path))  # fmt: skip
    assert "shadowed" not in done.text
    assert done.code == 64, done.text


def test_an_own_excepthook_still_works_and_the_exception_is_told_at_the_exit(tmp_path, nothing_left):
    code = "import sys\nsys.excepthook = lambda kind, error, trace: print('hooked', error, file=sys.stderr)\nraise OSError('x')"
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **job(tmp_path, {"entry.py": code}, "entry.py"))
    assert done.code == 1
    assert failure(tmp_path).startswith("exception: rank 0 on algo-1, exit 1, attempt 1: OSError: x (at entry.py:3)")
    assert "[0 algo-1] hooked x" in done.text


def test_causes_are_told_oldest_first(tmp_path, nothing_left):
    code = "try:\n    {}['key']\nexcept KeyError as error:\n    raise ValueError('outer') from error"
    algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **job(tmp_path, {"entry.py": code}, "entry.py"))
    text = failure(tmp_path)
    assert text.splitlines()[0].endswith("ValueError: outer (at entry.py:4)")
    assert text.index("KeyError: 'key'") < text.rindex("ValueError: outer")


def test_a_shell_script_is_an_entry_point_and_its_python_is_seen(tmp_path, nothing_left):
    code = {
        "entry.sh": 'echo "shell $1 $2 rank $RANK"\npython3 part.py\necho never || true\n',
        "part.py": "raise LookupError('inside the shell')",
    }
    code["entry.sh"] = "set -e\n" + code["entry.sh"]
    environ = job(tmp_path, code, "entry.sh", lr="1")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, PATH=path, **environ)
    assert "[0 algo-1] shell --lr 1 rank 0" in done.out
    assert done.code == 1
    assert failure(tmp_path).startswith("exception: rank 0 on algo-1, exit 1, attempt 1: LookupError: inside the shell")


# A rank loads torch to show that a neighbour's behaviour stays as it was.
@pytest.mark.slow
def test_multiprocessing_spawn_works_in_a_rank(tmp_path, nothing_left):
    code = (
        "import os, time\nimport torch.multiprocessing as mp\n"
        "def work(index):\n    print('child', index, flush=True)\n"
        "    if index == 0: open('there', 'w').close()\n"
        "    while not os.path.exists('there'): time.sleep(0.01)\n"  # mp.spawn ends the others at the first error
        "    if index == 1: raise ArithmeticError('in a child')\n"
        "if __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n"
    )
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **job(tmp_path, {"entry.py": code}, "entry.py"))
    assert done.code == 1, done.text
    assert "[0 algo-1] child 0" in done.out
    assert "ArithmeticError: in a child" in failure(tmp_path)


def test_the_shim_changes_nothing_that_a_script_can_see(tmp_path, nothing_left):
    code = (
        "import sys, json\n"
        "before = sorted(m for m in sys.modules if m.split('.')[0] in ('algorun', 'traceback', 'socket', 'algorun_rank_shim'))\n"
        "print('seen', json.dumps([__name__, sys.argv, sys.path[0], before]))\n"
    )
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **job(tmp_path, {"entry.py": code}, "entry.py"))
    assert done.code == 0, done.text
    line = next(line for line in done.out.splitlines() if "seen" in line)
    assert json.loads(line.split("seen ", 1)[1]) == ["__main__", ["entry.py"], str(tmp_path / "code"), []]


HOOKED = "import sys; print('hooked', sys.excepthook is not sys.__excepthook__)"
OWN = ROOT / "launcher" / "algorun" / "inside" / "rank_shim.py"


def hooked(shim: str, *options: str, code: str = HOOKED, cwd: Path | None = None, **environ: str) -> str:
    """What a Python prints that is started as a rank with this ALGORUN_SHIM."""
    argv = [sys.executable, *options, "-c", code]
    environ = clean_environ(ALGORUN_RANK="0", ALGORUN_SHIM=shim, **environ)
    done = subprocess.run(argv, env=environ, cwd=cwd, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("-I",)])
def test_the_shim_of_this_installation_runs(options):
    assert hooked(str(OWN), *options) == "hooked True\n"


def test_a_worker_of_ray_offers_its_stacks_and_nothing_else(tmp_path):
    code = f"{HOOKED}; import os; print(os.listdir({str(tmp_path)!r}) == [f'stack-{{os.getpid()}}'])"
    environ = clean_environ(ALGORUN_SHIM=str(OWN), ALGORUN_STACKS=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout + done.stderr == "hooked False\nTrue\n"


def test_the_shim_leaves_no_file_open():
    assert "ResourceWarning" not in hooked(str(OWN), PYTHONDEVMODE="1")


@pytest.mark.parametrize("options", [(), ("-I",)])
def test_no_other_file_runs_in_the_shims_place(tmp_path, options):
    (tmp_path / "algorun" / "inside").mkdir(parents=True)
    other = tmp_path / "algorun" / "inside" / "rank_shim.py"  # as another installation, or a folder of the user, has it
    other.write_text("print('another program has run')\nimport sys\nsys.excepthook = None\n")
    link = tmp_path / "rank_shim.py"
    link.symlink_to(OWN)
    folder = OWN.parent
    for shim in (
        *(str(other), str(link), str(folder), str(folder / "gloo_threads.py"), str(folder / "rank_exec.py")),
        *(
            "rank_shim.py",
            "algorun/inside/rank_shim.py",
            os.path.relpath(OWN, tmp_path),
            f"{folder}/../inside/rank_shim.py",
        ),
        *("", "/", "/dev/stdin", f"{OWN}\n", f" {OWN}", f"{OWN}/"),
    ):
        assert hooked(shim, *options, cwd=tmp_path, PYTHONPATH=str(tmp_path)) == "hooked False\n", shim


def test_the_shim_of_an_installed_package_runs_beside_its_pth_file(tmp_path):
    """As pip installs a wheel: the package and the .pth file in one folder, which may be reached through a link."""
    site, reached = tmp_path / "site", tmp_path / "lib64"
    (site / "algorun").mkdir(parents=True)
    shutil.copytree(OWN.parent, site / "algorun" / "inside")
    shutil.copy(ROOT / "launcher" / "algorun-rank.pth", site)
    reached.symlink_to(site)
    code = f"import site\nsite.addsitedir({str(reached)!r})\n{HOOKED}"
    assert hooked(str(site / "algorun" / "inside" / "rank_shim.py"), "-I", "-S", code=code) == "hooked True\n"
    for shim in (OWN, reached / "algorun" / "inside" / "rank_shim.py"):
        assert hooked(str(shim), "-I", "-S", code=code) == "hooked False\n"


def test_the_pth_file_costs_other_pythons_nearly_nothing():
    """About 0.2 ms, nearly all of it to compile the lines."""
    lines = (ROOT / "launcher" / "algorun-rank.pth").read_text().splitlines()
    assert all(line.startswith("import os") for line in lines)
    setup = f"import os; os.environ.pop('ALGORUN_SHIM', None); lines = {lines!r}"
    assert min(timeit.repeat("for line in lines: exec(line)", setup, number=100, repeat=5)) / 100 < 1e-3


def test_without_a_launcher_the_pth_file_does_nothing():
    code = "import sys; sys.exit(int(sys.excepthook is not sys.__excepthook__))"
    done = subprocess.run([sys.executable, "-c", code], env=clean_environ(RANK="0"), timeout=30, check=False)
    assert done.returncode == 0


# What the supervisor does is the same under all engines.
@pytest.mark.slow(but=["native"])
@pytest.mark.parametrize("engine", ["native", "torchrun"])
def test_a_terminating_newline_less_message_is_not_lost(engine, tmp_path, nothing_left):
    code = "import sys\nsys.stdout.write('no newline at the end')\nsys.stdout.flush()\n"
    environ = job(tmp_path, {"entry.py": code}, "entry.py")
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, ALGORUN_ENGINE=engine, **environ)
    assert done.code == 0, done.text
    assert "[0 algo-1] no newline at the end\n" in done.out


def test_the_pth_line_of_the_wheel_is_the_one_in_the_tree():
    import sysconfig

    installed = Path(sysconfig.get_paths()["purelib"]) / "algorun-rank.pth"
    assert installed.read_text() == (ROOT / "launcher" / "algorun-rank.pth").read_text()


BUSY_THREAD = """
import ctypes, hashlib, sys, threading, time
sys.path.insert(0, sys.argv[1])
import gloo_threads

def work():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop")  # PR_SET_NAME
    up.set()
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 1_500_000)  # computes without the GIL
    done.append(time.monotonic())
    rest.wait(60)

up, rest, done = threading.Event(), threading.Event(), []
threading.Thread(target=work, daemon=True).start()
up.wait(60)
gloo_threads.let_rest(longest=60_000)
print(bool(done), gloo_threads.states())
begun = time.monotonic()
gloo_threads.let_rest()
print(time.monotonic() - begun < 60)
"""


def test_a_thread_of_gloo_that_still_works_is_waited_for_and_one_that_sleeps_is_not():
    argv = [sys.executable, "-c", BUSY_THREAD, str(ROOT / "launcher" / "algorun" / "inside")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "True ['S']\nTrue\n", done.stderr


GLOO_AT_THE_END = """
import torch.distributed as dist

class Last:
    def __del__(self, still=dist.is_initialized):
        print("gloo at the end:", still(), flush=True)

last = Last()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


def test_gloo_is_ended_before_the_interpreter_is(tmp_path, nothing_left):
    """Its thread aborts the process otherwise, in one of thirty ranks or so."""
    environ = job(tmp_path, {"entry.py": GLOO_AT_THE_END}, "entry.py")
    done = algorun("train", cwd=tmp_path, ALGORUN_TEST=nothing_left, **environ)
    assert done.code == 0, done.text
    assert "gloo at the end: False" in done.out


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_not_collected_while_torch_is_imported(tmp_path, collects):
    (tmp_path / "torch" / "_dynamo").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("import gc; print('torch', gc.isenabled())")
    (tmp_path / "torch" / "_dynamo" / "__init__.py").write_text(
        "import gc; print('dynamo', gc.isenabled()); import torch.missing"
    )
    code = f"""\
import gc, sys
sys.path.insert(0, {str(tmp_path)!r})
{"" if collects else "gc.disable()"}
import torch; print('between', gc.isenabled())
try: import torch._dynamo
except ImportError: print('after an error', gc.isenabled())
"""
    expected = ["torch False", f"between {collects}", "dynamo False", f"after an error {collects}"]
    assert hooked(str(OWN), code=code, ALGORUN_RUN_DIR=str(tmp_path)).splitlines() == expected
