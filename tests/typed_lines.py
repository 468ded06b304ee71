"""Types every command of the README and of the task pages as a newcomer does, and prints the seconds of each.

`make test PART=typed-lines`; CI does it in a bare container. A line that does not end as it should, or that nobody has thought
of here, fails.
"""

from __future__ import annotations

import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S = 300
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
IN_A_TABLE = re.compile(r"`((?:algorun|docker|\./build\.sh|make) [^`]*)`")
COMMAND = re.compile(r"(?:\$ )?((?:algorun(?! \d)|make|source|pip|docker|\./build\.sh) .*)")
# Lines that are not typed here, and why.
ELSEWHERE = {
    r"make (demo|test)$": "the newcomer types it before",
    r"make demo-lm$": "takes 4 minutes",
    r"make (env|test PART=gpu)\b.*": "make test PART=typed-lines has made the environment; no GPU is here",
    r"algorun plan --fit\b.*": "needs the folder of a model: tests/client/commands/test_fit.py makes one",
    r"source .*": "this program puts the environment's programs on PATH itself",
    r"(\./build\.sh|docker) .*": "needs Docker: CI builds the image and runs containers of it",
}
TRAIN = """
import os, sys
for epoch in range(3):
    print(f"epoch: {epoch + 1}/3 train_loss: {1 / (epoch + 1):.3f} accuracy: {0.5 + epoch / 10:.2f}", flush=True)
if os.environ.get("RANK", "0") == "0" and "SM_MODEL_DIR" in os.environ:
    open(os.environ["SM_MODEL_DIR"] + "/model.txt", "w").write(" ".join(sys.argv[1:]))
    os.makedirs(os.environ["ALGORUN_CHECKPOINT_DIR"], exist_ok=True)
    open(os.environ["ALGORUN_CHECKPOINT_DIR"] + "/last.pt", "w").write("kept")
"""
JOB_FILE = """
where = "local"
project = "imagenet"
[task.data]
kind = "processing"
run = ["make_data.py"]
[task.train]
run = ["train.py", "--lr", "0.1"]
in.train = "task:data/output"
metrics = { accuracy = "accuracy: ([0-9.]+)" }
[task.train.sweep]
grid = { lr = [0.1, 0.01] }
best = "max:accuracy"
[task.eval]
run = ["train.py"]
in.model = "task:train/model"
"""


def commands(page: str) -> list[str]:
    """The commands of a page in their order, each once."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = [block for language, block in BLOCK.findall(text) if not language]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [match[1] for line in lines if (match := COMMAND.match(line))]
    if page == "README.md":
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        found += [command for row in rows for command in IN_A_TABLE.findall(row)]
    return list(dict.fromkeys(" ".join(shlex.split(each, comments=True, posix=False)) for each in found))


def png(shade: int) -> bytes:
    """A picture of 8 x 8 pixels of one shade."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([shade]) * 8 for _ in range(8))
    head = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def pictures(folder: Path) -> None:
    for number, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for shade in range(8):
            (folder / name / f"{shade}.png").write_bytes(png(100 * number + 5 * shade))


def prepared(page: str, folder: Path) -> Path:
    """Where the lines of a page are typed, with what they name."""
    if page == "docs/first-job.md":
        return ROOT
    (folder / "train.py").write_text(TRAIN)
    for name in ("images", "train", "val"):
        pictures(folder / name)
    pictures(folder / "root" / "s3" / "bucket" / "images")
    if page == "docs/chains.md":
        (folder / "algorun.toml").write_text(JOB_FILE)
        (folder / "make_data.py").write_text("import os; open(os.environ['SSM_OUTPUT'] + '/x', 'w').write('1')")
        (folder / ".algorunignore").write_text("root/\nimages/\n")
    else:
        (folder / ".algorunignore").write_text("root/\nimages/\ntrain/\nval/\nalgorun-simulate/\n")
    return folder


def typed(line: str, page: str) -> tuple[list[str], tuple[int, ...]]:
    """The words that are typed for a line, and the codes it may end with. No account is here."""
    words = shlex.split(line.replace("IMAGE_URI", "123456789012.dkr.ecr.eu-west-1.amazonaws.com/algorun:0.2.0"))
    if "--resume" in words:  # nobody stops it here
        words = ["20" if word == "500" else word for word in words]
    if words[:3] == ["algorun", "doctor", "--aws"]:
        return words, (71,)
    if words[:2] == ["algorun", "doctor"]:
        return words, (0, 69)  # 69: a container may have too little /dev/shm
    here = "--where" in words or page == "docs/chains.md"
    if words[1] in ("submit", "fetch", "report", "status", "logs", "ls") and not here:
        return [*words[:2], "--where", "local", *words[2:]], (0,)
    return words, (0,)


def main() -> int:
    failed = 0
    for page in sys.argv[1:]:
        print(f"== {page}", flush=True)
        with tempfile.TemporaryDirectory(prefix="algorun-typed-") as folder:
            where = prepared(page, Path(folder))
            environ = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ALGORUN_"))}
            environ |= {
                "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "ALGORUN_LOCAL_ROOT": f"{folder}/root",
                "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/none", "AWS_SHARED_CREDENTIALS_FILE": "/none",
                "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            before = set(where.iterdir())
            first = ["algorun submit --task data"] if page == "docs/chains.md" else []  # which its tasks read
            for line in [*first, *commands(page)]:
                if "state clean --host" in line:  # the line before has removed all
                    kept = Path(folder) / "root/s3/local/imagenet/train/state/algo-2"
                    kept.mkdir(parents=True)
                    (kept / "last.pt").write_text("kept")
                failed += one(line, page, where, environ)
            if where == ROOT:
                left = [each.name for each in set(where.iterdir()) - before]
                subprocess.run(["rm", "-rf", *left], cwd=where, check=True)
    print(f"{failed} lines failed" if failed else "every line ended as it should")
    return 1 if failed else 0


def one(line: str, page: str, where: Path, environ: dict[str, str]) -> int:
    """Types a line. Returns 1 if it fails."""
    for pattern, why in ELSEWHERE.items():
        if re.fullmatch(pattern, line):
            print(f"    -    {line}  ({why})", flush=True)
            return 0
    words, codes = typed(line, page)
    begin = time.monotonic()
    try:
        done = subprocess.run(
            words,
            cwd=where,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        code, said = -1, f"no end after {LONGEST_S} s\n{late.stdout!r}"
    except FileNotFoundError as error:
        code, said = 127, str(error)
    shown = "" if words == shlex.split(line) else f"  (typed: {shlex.join(words[:4])} ..)"
    print(f"{time.monotonic() - begin:6.1f} s  {line}{shown}", flush=True)
    if code in codes:
        return 0
    print(f"    ended with {code}, not {' or '.join(map(str, codes))}:\n{said[-4000:]}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
