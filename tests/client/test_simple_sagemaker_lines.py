"""Command lines that were written for simple-sagemaker's `ssm shell --cmd_line` run as they are, by `submit --shell`.

Source: the articles and examples of simple-sagemaker 0.9.24 ("Single line distributed PyTorch training on AWS SageMaker").
"""

from __future__ import annotations

import os

import pytest

from tests.client.test_documented_lines import Laptop, here, laptops, server

__all__ = ["here", "laptops", "server"]

# Of PyTorch's ImageNet example: what these command lines need of it.
MAIN = """
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int)
parser.add_argument("--resume")
parser.add_argument("--workers", type=int)
parser.add_argument("--seed", type=int)
parser.add_argument("--dist-url")
parser.add_argument("--world-size", type=int)
parser.add_argument("--rank", type=int)
options = parser.parse_args()
assert os.environ["MASTER_ADDR"] and os.environ["MASTER_PORT"] and options.dist_url == "env://"
old = pathlib.Path(options.resume)
begun = int(old.read_text()) if old.exists() else 0
names = sorted(str(path.relative_to(options.data)) for path in pathlib.Path(options.data).rglob("*.jpg"))
print(f"rank {options.rank} of {options.world_size}: from epoch {begun} to {begun + options.epochs} on {names}")
old.write_text(str(begun + options.epochs))
"""
EXTRACT = """#!/bin/bash
for tar in "$1"/train/*.tar; do tar -xf "$tar" -C "$1/train" && rm "$tar"; done
"""
TRAIN = (
    "./extract.sh $SM_CHANNEL_TRAIN/.. && CODE_DIR=`pwd` && cd $SSM_INSTANCE_STATE && START=$SECONDS && "
    "python $CODE_DIR/main.py --epochs 10 --resume checkpoint.pth.tar --workers 8 --dist-url env:// "
    "--world-size $SSM_NUM_NODES --rank $SSM_HOST_RANK --seed 123 $SM_CHANNEL_TRAIN/.. 2>&1 && "
    "echo Total time: $(( SECONDS - START )) seconds"
)


def prepared(laptop: Laptop) -> None:
    """The folders of the example."""
    for name in ("code", "data/train", "data/val"):
        (laptop.folder / name).mkdir(parents=True)
    (laptop.folder / "code" / "main.py").write_text(MAIN)
    (laptop.folder / "code" / "extract.sh").write_text(EXTRACT)
    (laptop.folder / "code" / "extract.sh").chmod(0o755)
    (laptop.folder / "data" / "val" / "v.jpg").write_text("v")
    (laptop.folder / "t.jpg").write_text("t")
    os.system(f"cd {laptop.folder} && tar -cf data/train/all.tar t.jpg")


def trained(laptop: Laptop) -> list[list[str]]:
    """Trains twice: the second job goes on where the first one ended."""
    prepared(laptop)
    line = f"--hosts 2 --code code --in train=data/train --in val=data/val --task dist --shell '{TRAIN}'"
    more = "--image IMAGE_URI --role ROLE --instance ml.m5.large "
    results = []
    for begun in (0, 10):
        result = laptop.run(("" if laptop.place == "local" else more) + ("--force " if begun else "") + line)
        assert result["code"] == 0, result
        for rank, host in enumerate(("algo-1", "algo-2")):
            said = f"from epoch {begun} to {begun + 10} on ['train/t.jpg', 'val/v.jpg']"
            assert f"[{rank} {host}] rank {rank} of 2: {said}" in result["lines"][host]
            assert any(line.startswith(f"[{rank} {host}] Total time: ") for line in result["lines"][host])
            assert result["files"][f"state/{host}/checkpoint.pth.tar"] == str(begun + 10)
        results.append(list(result["files"]))
    return results


def test_the_line_of_the_article_trains_and_resumes_on_this_machine(here):
    trained(here)


# `make test` keeps one line.
@pytest.mark.slow
def test_the_line_of_the_article_trains_and_resumes_in_both_places(laptops):
    assert trained(laptops[0]) == trained(laptops[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("cat /proc/cpuinfo && nvidia-smi || exit 9", 9, "processor"),
        ("ps -elf >> $SM_OUTPUT_DATA_DIR/ps__elf", 0, ""),
        ("echo $SSM_HOST_RANK && exit $SSM_HOST_RANK", 1, "] 1"),
        ("echo $SSM_HOST_RANK && echo Message >> $SM_OUTPUT_DIR/failure && exit 0", 0, "] 0"),
    ],
)
def test_other_lines_of_its_examples(laptops, line, code, says):
    for laptop in laptops:
        result = laptop.run(
            f"--hosts 2 --task line --image IMAGE_URI --role ROLE --instance ml.m5.large --shell '{line}'"
        )
        assert result["code"] == code, result
        assert any(says in each for lines in result["lines"].values() for each in lines)
        if "ps__elf" in line:
            assert "ps -elf" in result["files"]["output/ps__elf"]
