"""The pipeline entrypoint: where the model is cut, by whom, and what is refused before any step."""

import json
import os
import re

import pytest
import torch

from .pipeline_runs import SPLIT, ended, refused


@pytest.mark.slow
def test_mp_parameters_lay_out_the_job(start):
    given = (
        "partitions=2,microbatches=4,pipeline=simple,ddp=True,placement_strategy=spread,optimize=speed,horovod=False"
    )
    said = ended(start(2, {"epochs": 1, "batch-size": 8, "mp_parameters": given}))
    assert "layout: 1 pipeline of 2 ranks (spread), 2 stages, schedule gpipe, 4 microbatches of 2" in said


def first_units(said: str) -> list[str]:
    """Of each stage, from the table of the plan."""
    return re.findall(r"^ +\d+ +\d+  (\S+)", said, re.MULTILINE)


def test_a_partition_is_profiled_used_again_edited_and_refused_for_another_model(start, tmp_path):
    file = tmp_path / "partition.json"
    plain = {"epochs": 1, "pp": 2, "batch-size": 8, "microbatches": 4, "partition": file}
    run = start(2, plain, {"profile-only": True})
    said = ended(run)
    assert f"partition: written to {file}" in said
    assert not list((run.base / "host0" / "checkpoints").iterdir())
    assert not (run.base / "host0" / "model" / "model.pt").exists()
    made = file.read_bytes()

    table = json.loads(made)
    stages = [stage["units"] for stage in table["stages"]]
    assert first_units(said) == [stages[0][0], stages[1][0]]
    if len(stages[0]) > 1:
        stages[1].insert(0, stages[0].pop())
    else:  # where the cut lies was measured
        stages[0].append(stages[1].pop(0))
    file.write_text(json.dumps(table))
    edited = file.read_bytes()
    again = start(2, plain, {"explain": True})
    said = ended(again)
    assert f"partition: of {file}" in said
    assert first_units(said) == [stages[0][0], stages[1][0]]
    held = list((again.base / "host0" / "checkpoints").rglob("part-0001-of-0002.pt"))
    names = torch.load(held[0], weights_only=True)["model"]
    assert any(name.startswith(f"{stages[1][0]}.") for name in names)
    assert file.read_bytes() == edited

    other = start(2, plain, {"width": 24})
    assert f"partition file {file}: model " in refused(other)
    stages[1].append("block.9")
    file.write_text(json.dumps(table))
    assert "'block.9' is no unit" in refused(start(2, plain))


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_refused_with_the_memory_that_it_needs(start, tmp_path):
    file = tmp_path / "partition.json"
    heavy = {**SPLIT, "epochs": 1, "width": 64, "context": 4}  # more in weights than in activations
    ended(start(2, heavy, {"profile-only": True, "optimize": "memory", "partition": file}))
    largest = max(json.loads(file.read_text())["decision"]["rank_bytes"])
    options = {**heavy, "memory-limit-mb": 0.9 * largest / 2**20}
    line = refused(start(2, options))
    assert re.search(r"the model does not fit 2 pipeline ranks with schedule 1f1b; allowed: .* MiB per rank; ", line)
    needed = float(re.search(r"the smallest partition found needs ([0-9.]+) MiB; fix: more ranks", line)[1])
    run = start(2, {**options, "memory-limit-mb": 1.01 * needed}, {"profile-only": True})
    assert "written to" in ended(run)
    tiny = {**options, "memory-limit-mb": 0.01}
    assert "alone needs" in refused(start(2, tiny))


@pytest.mark.slow(but=["2-*"])
@pytest.mark.parametrize(
    ("world", "options", "message"),
    [
        (2, {"schedule": "interleaved", "chunks": 8}, "of the model GPT, which can be cut into "),
        (2, {"model": "vit", "tied": True}, "option --tied: with --model vit; allowed: with gpt"),
        (4, {"pp": 2, "shard": "3"}, "option --shard: 3 does not divide the 2 pipelines; allowed: 1, 2, all"),
        (2, {"shard": "half"}, "option --shard: 'half'; allowed: a divisor of the number of pipelines, or all"),
        (4, {"pp": 2, "shard": "2", "schedule": "zero-bubble"}, "option --shard: 2 with --schedule zero-bubble, which splits the backward pass"),
        (2, {"context": 5000}, "option --context: 5000 needs 10002 bytes of text, "),
        (2, {"mp_parameters": '{"partitions": 2, "tensor_parallel_degree": 2}'}, "mp_parameters: tensor_parallel_degree"),
        (2, {"partition": os.devnull}, f"partition file {os.devnull} is not JSON"),
        (2, {"partition": "/proc/none/made.json"}, "option --partition: folder /proc/none cannot be written: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_on_all_ranks_before_any_step(start, world, options, message):
    assert message in refused(start(world, {"epochs": 1}, options))
