"""A launcher or a library between the rank and the exception: the failure names the exception, and the user's own line.

Each program is as people write it, with the library itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import FAILS_ALONE, Outcome, algorun

INNER = 'raise ValueError("vocab file has 31999 entries")\n'
RUN = "import subprocess, sys\nsubprocess.run([sys.executable, 'inner.py'], check=True)\n"
RETRIED = """
import subprocess, sys
for attempt in range(2):
    try:
        subprocess.run([sys.executable, "inner.py"], check=True)
    except subprocess.CalledProcessError:
        print("again")
raise RuntimeError("no checkpoint was written")
"""
OTHER_CHILD = """
import subprocess, sys
try:
    subprocess.run([sys.executable, "inner.py"], check=True)
except subprocess.CalledProcessError:
    print("without the vocab then")
subprocess.check_call(["ls", "/no/such/folder"])
"""
GROUP = """
import asyncio
async def read(shard):
    if shard == 2:
        error = OSError(28, "No space left on device", f"/opt/ml/cache/shard-{shard}")
        error.add_note("while reading epoch 3")
        raise error
    await asyncio.sleep(5)
async def main():
    async with asyncio.TaskGroup() as group:
        for shard in range(4):
            group.create_task(read(shard))
asyncio.run(main())
"""
TYPER = """
import typer
app = typer.Typer()
@app.command()
def main(lr: float = 0.1):
    raise OSError("dataset glue/sst2 is not cached")
app()
"""
TYPER_OPTION = TYPER.replace("import typer\n", "import sys, typer\nsys.argv += ['--lr', 'fast']\n", 1)
CLICK = """
import click
@click.command()
def main():
    raise click.ClickException("dataset glue/sst2 is not cached")
main()
"""
BAR = """
import logging, sys
from tqdm import tqdm
bar = tqdm(total=30)
bar.update(3)
bar.refresh()
logging.error("checkpoint cannot be written: quota of /fsx is used up")
sys.exit(1)
"""
HYDRA = """
import sys, traceback
try:
    {}["optimizer"]
except KeyError:
    print("Error executing job with overrides: ['lr=1']", file=sys.stderr)
    traceback.print_exc()
    print("\\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.", file=sys.stderr)
    sys.exit(1)
"""
POOL = """
from concurrent.futures import ProcessPoolExecutor
def part(number):
    raise ConnectionError(f"bucket of part {number} refuses")
if __name__ == "__main__":
    with ProcessPoolExecutor(1) as pool:
        pool.submit(part, 1).result()
"""
INITIALIZER = """
from concurrent.futures import ProcessPoolExecutor
def begin():
    raise ImportError("libjpeg.so.8 is missing")
if __name__ == "__main__":
    with ProcessPoolExecutor(1, initializer=begin) as pool:
        pool.submit(print, 1).result()
"""
JOBLIB = """
from joblib import Parallel, delayed
def label(number):
    if number == 3:
        raise LookupError("sample 3 has no label")
if __name__ == "__main__":
    Parallel(n_jobs=2)(delayed(label)(number) for number in range(6))
"""
SPAWN = """
import torch.multiprocessing as mp
def work(rank):
    raise ArithmeticError("loss is not finite")
if __name__ == "__main__":
    mp.spawn(work, nprocs=1)
"""
LOADER = """
import torch
class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        raise ValueError(f"image {index} is truncated")
if __name__ == "__main__":
    for batch in torch.utils.data.DataLoader(Images(), num_workers=1):
        pass
"""
DDP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 4)
    def forward(self, x):
        return self.head(x)
torch.nn.parallel.DistributedDataParallel(Net())(torch.ones(2, 7))
"""
TORCHRUN = (
    "import subprocess\nsubprocess.run(['torchrun', '--standalone', '--nproc_per_node', '2', 'ddp.py'], check=True)\n"
)
WORKERS = """
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise KeyError("tokenizer has no pad token")
dist.barrier()
"""
ESCAPES = "raise ValueError('boom \\x1b]0;owned\\x07\\x1b[2J\\x1b[1A\\rok nnodes=1 world_size=2\\u202e\\u2028::error::x\\x85y\\nok nnodes=1 world_size=1')"


def run(name: str, text: str, folder: Path, marker: str, **more: str) -> Outcome:
    (folder / "inner.py").write_text(INNER)
    (folder / "ddp.py").write_text(WORKERS)
    (folder / name).write_text(text)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return algorun(
        "simulate", "-j", "1x1", name, cwd=folder, ALGORUN_TEST=marker, PATH=path, COLUMNS="80", **FAILS_ALONE, **more
    )


def failure(done: Outcome) -> str:
    return (done.folder / "algo-1" / "output" / "failure").read_text()


ROWS = (
    ("run.py", RUN, "ValueError: vocab file has 31999 entries (process PID, then CalledProcessError) (at inner.py:1)"),
    ("call.py", RUN.replace("run(", "check_call(").replace(", check=True", ""),
     "ValueError: vocab file has 31999 entries (process PID, then CalledProcessError) (at inner.py:1)"),
    ("shell.py", "import subprocess\nsubprocess.check_call('python inner.py', shell=True)\n",
     "ValueError: vocab file has 31999 entries (process PID, then CalledProcessError) (at inner.py:1)"),
    ("run.sh", "set -e\npython inner.py\n", "ValueError: vocab file has 31999 entries (at inner.py:1)"),
    ("retried.py", RETRIED, "RuntimeError: no checkpoint was written (at retried.py:8)"),
    ("other.py", OTHER_CHILD, "subprocess.CalledProcessError: Command '['ls', '/no/such/folder']' returned non-zero exit status 2. "
     "(last output: ls: cannot access '/no/such/folder': No such file or directory) (at other.py:7)"),
    ("or.sh", "python inner.py || echo without\necho 'quota of /fsx is used up' >&2\nexit 1\n", "quota of /fsx is used up"),
    ("words.sh", "exec 2>&1\nls /no/such/folder || exit 3\n", "ls: cannot access '/no/such/folder': No such file or directory"),
    ("words.py", "import sys\nprint('FATAL: config key optimizer is missing')\nsys.exit(1)\n", "FATAL: config key optimizer is missing"),
    ("group.py", GROUP, "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): OSError: [Errno 28] No space left on "
     "device: '/opt/ml/cache/shard-2' (at group.py:7)"),
    ("bar.py", BAR, "ERROR:root:checkpoint cannot be written: quota of /fsx is used up"),
    ("typed.py", TYPER, "OSError: dataset glue/sst2 is not cached (at typed.py:6)"),
    ("option.py", TYPER_OPTION, "Invalid value for '--lr': Input should be a valid number, unable to parse string as a number"),
    ("clicked.py", CLICK, "Error: dataset glue/sst2 is not cached"),
    ("hydra.py", HYDRA, "KeyError: 'optimizer' (at hydra.py:4)"),
    ("pool.py", POOL, "ConnectionError: bucket of part 1 refuses (at pool.py:4)"),
    ("begin.py", INITIALIZER, "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly "
     "while the future was running or pending. (last output: ImportError: libjpeg.so.8 is missing) (at begin.py:7)"),
    ("job.py", JOBLIB, "LookupError: sample 3 has no label (at job.py:7)"),
    ("spawned.py", SPAWN, "ArithmeticError: loss is not finite (Process 0 terminated with the following error) (at spawned.py:4)"),
    ("loader.py", LOADER, "ValueError: image 0 is truncated (Caught ValueError in DataLoader worker process 0.) (at loader.py:7)"),
    ("net.py", DDP, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x7 and 8x4) (at net.py:9)"),
    ("torchrun.py", TORCHRUN, "KeyError: 'tokenizer has no pad token' (process PID, then ChildFailedError, then CalledProcessError) "
     "(at ddp.py:5)"),
    ("absent.sh", "accelerate launch --cpu --num_processes 1 absent.py\n", "[Errno 2] No such file or directory"),
    ("accelerated.sh", "accelerate launch --cpu --num_processes 1 inner.py\n",
     "ValueError: vocab file has 31999 entries (process PID, then CalledProcessError) (at inner.py:1)"),
)  # fmt: skip


# The others load torch. Decided in launcher/control/test_child_errors.py and test_last_words.py.
@pytest.mark.slow(but=["run.py", "other.py", "or.sh", "words.sh", "bar.py", "typed.py"])
@pytest.mark.parametrize(("name", "text", "says"), ROWS, ids=[name for name, _, _ in ROWS])
def test_the_first_line_says_what_failed_and_where(name, text, says, tmp_path, nothing_left):
    done = run(name, text, tmp_path, nothing_left)
    assert done.code not in (0, 70), done.text
    first = failure(done).splitlines()[0]
    kind, _, told = first.partition(", attempt 1: ")
    assert kind.startswith(("exception: rank 0 on algo-1, exit ", "exit: rank 0 on algo-1, exit "))
    if name == "absent.sh":  # Python's own words hold the name of a temporary folder
        assert "python3: can't open file" in told, first
        assert says in told, first
        return
    before, pid, after = says.partition("PID")
    assert told.startswith(before), first
    assert told.endswith(after), first
    assert bool(pid) == told[len(before) :].split(",")[0].isdigit(), first


def test_a_group_in_a_rank_gets_the_hint_of_its_member_and_keeps_the_notes(tmp_path, nothing_left):
    text = failure(run("group.py", GROUP, tmp_path, nothing_left))
    assert "\nwhile reading epoch 3\n" in text
    assert "\nhint: " in text
    assert "larger volume" in text.splitlines()[-1]


def test_no_escape_of_a_rank_reaches_the_launchers_lines_and_no_line_of_it_looks_like_one(tmp_path, nothing_left):
    done = run("train.py", ESCAPES, tmp_path, nothing_left)
    own = [line for line in (done.out + done.err).split("\n") if not line.startswith("[0 algo-1] ")]
    for line in [*own, *failure(done).split("\n")]:
        assert line.isprintable(), line
    assert [line for line in own if line.startswith("ok ")] == []
    assert "| ok nnodes=1 world_size=1" in own
    assert done.out.splitlines()[-1].startswith("failed nnodes=1 world_size=1 code=1 exception: rank 0 on algo-1")
