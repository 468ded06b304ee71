"""Memory that a rank of `ddp --model FOLDER` takes of its host, per byte of the model's weights in float32.

    python bench/host_memory.py [--ranks 2] [--width 768] [--layers 12] [--forms lora-shard,lora]

Each form is a job of its own on a Llama with random weights, and the same job on a tiny one. The figure is the most anonymous
memory of a rank, looked at every 10 ms, less that of the tiny job, over the weights' bytes. Pages of files that are mapped, such as
safetensors, do not count: the kernel drops them. On a CPU the weights that a rank computes with are part of it.

glibc keeps blocks that are freed, up to several times the weights: MALLOC_MMAP_THRESHOLD_=500000 gives them back.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

FORMS = {"lora-shard": ["--lora", "4", "--shard", "all"], "lora": ["--lora", "4"]}
JOB = ["--epochs", "1", "--batch-size", "1", "--context", "16"]
EVERY_S = 0.01


def peaks(base: Path, model: Path, text: Path, ranks: int, options: list[str]) -> list[int]:
    """The most anonymous memory of each rank of one job, bytes. The job writes below `base`."""
    from algorun.common.free_ports import free_ports

    base.mkdir()
    port, started = free_ports("127.0.0.1", 1)[0], []
    words = [
        sys.executable,
        "-m",
        "algorun_train.jobs.ddp",
        "--model",
        str(model),
        "--train",
        str(text),
        *JOB,
        *options,
    ]
    for rank in range(ranks):
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        environ = os.environ | {key: str(value) for key, value in numbers.items()}
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with (base / f"{rank}.log").open("w") as log:
            started.append(subprocess.Popen(words, cwd=base, env=environ, stdout=log, stderr=log))
    found = [0] * ranks
    while any(process.poll() is None for process in started):
        for rank, process in enumerate(started):
            found[rank] = max(found[rank], anonymous(process.pid))
        time.sleep(EVERY_S)
    for rank, process in enumerate(started):
        if process.returncode:
            raise SystemExit(f"rank {rank}: status {process.returncode}\n{(base / f'{rank}.log').read_text()}")
    return found


def anonymous(pid: int) -> int:
    """The resident memory of a process without that of files, bytes; 0 after its end."""
    try:
        words = Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")[2].split()
    except OSError:
        return 0
    return int(words[0]) * 1024 if words else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--forms", default=",".join(FORMS))
    args = parser.parse_args()
    from tests.train.model_folders import write_language_model, write_text

    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        text = write_text(base / "text", 8)
        sizes = {"hidden_size": args.width, "intermediate_size": args.width * 2, "num_hidden_layers": args.layers}
        large = write_language_model(base / "large", **sizes)
        tiny = write_language_model(base / "tiny")
        weights = sum(file.stat().st_size for file in large.glob("*.safetensors"))
        print(f"{args.ranks} ranks, {weights / 1e6:.0f} MB of weights", flush=True)
        for form in args.forms.split(","):
            big, small = (
                peaks(base / f"{form}-{model.name}", model, text, args.ranks, FORMS[form]) for model in (large, tiny)
            )
            shares = [(one - other) / weights for one, other in zip(big, small, strict=True)]
            print(
                f"{form}: {' '.join(f'{share:.2f}' for share in shares)} bytes per byte of weights, by rank", flush=True
            )


if __name__ == "__main__":
    main()
