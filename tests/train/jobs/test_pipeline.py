"""The pipeline entrypoint on real ranks: training, stops and resumption in any layout, what it leaves, what it refuses."""

import itertools
import json
import os
import random
import re
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch.nn import functional

from algorun_train.data.text import sequences
from algorun_train.models import gpt
from algorun_train.parallel import schedules
from tests.train.training_runs import Ranks, epochs, write_images

WORDS = ("the", "a", "cat", "dog", "runs", "sleeps", "under", "over", "table", "quick", "brown", "fox", "jumps", "lazy")
TINY = {"width": 16, "depth": 4, "heads": 2, "context": 32, "log-interval": 1}
STEPS = 16  # of two epochs of 124 sequences in batches of 16
SPLIT = {"pp": 2, "batch-size": 8, "microbatches": 4}  # two pipelines of two ranks
CLIPPED = {"epochs": 2, "clip-norm": 1}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A channel of sentences; a tenth of it is held out."""
    folder = tmp_path_factory.mktemp("text")
    drawn = random.Random(0)
    letters = " ".join(drawn.choice(WORDS) for _ in range(1500))[: 33 * 138]
    (folder / "a.txt").write_text(letters)
    return folder


def words(*tables: dict) -> list[str]:
    """Options of the tables, later ones first."""
    merged = {key: value for table in tables for key, value in table.items()}
    return [word for key, value in merged.items() for word in (f"--{key}", str(value))]


@pytest.fixture
def start(ranks, text):
    """Starts the entrypoint on ranks of one host."""

    def begin(world: int, *tables: dict, **options: Any) -> Ranks:
        return ranks(1, world, *words(TINY, {"train": text}, *tables), program="algorun_train.jobs.pipeline", **options)

    return begin


def ended(run: Ranks) -> str:
    """What rank 0 said of a run that went well."""
    codes = run.codes()
    assert codes == [0] * len(codes), "\n".join(run.text(rank) for rank in range(len(codes)))
    return run.text()


def refused(run: Ranks) -> str:
    """The one error line, equal on all ranks, of a run that did no step."""
    codes = run.codes()
    everything = [run.text(rank) for rank in range(len(codes))]
    assert codes == [64] * len(codes), everything
    last = {each.splitlines()[-1] for each in everything}
    assert len(last) == 1
    for each in everything:
        assert each.count("error: ") == 1
        assert "Traceback" not in each
        assert "step: " not in each
    (line,) = last
    assert line.startswith("error: ")
    return line


def weights(base: Path) -> dict[str, torch.Tensor]:
    return torch.load(base / "host0" / "model" / "model.pt", weights_only=True)


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def checkpoints(base: Path) -> list[str]:
    return sorted(folder.name for folder in (base / "host0" / "checkpoints").glob("step-*"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, text):
    """A run of two pipelines of two ranks that nobody disturbs, explained; and its partition file."""
    base = tmp_path_factory.mktemp("uninterrupted")
    run = Ranks(
        base,
        1,
        4,
        words(
            TINY,
            SPLIT,
            CLIPPED,
            {"train": text, "explain": True, "placement": "spread", "partition": base / "made.json"},
        ),
        program="algorun_train.jobs.pipeline",
    )
    try:
        ended(run)
    finally:
        run.kill()
    return run


def partitioned(uninterrupted: Ranks) -> dict:
    """Stages as the undisturbed run had them: where they begin decides the order in which a norm is summed."""
    return {"partition": uninterrupted.base / "made.json", "placement": "spread"}


def test_the_plan_is_shown_before_and_the_measured_schedule_after(uninterrupted):
    said = uninterrupted.text()
    assert "layout: 2 pipelines of 2 ranks (spread), 2 stages, schedule 1f1b, 4 microbatches of 2" in said
    plan, _, training = said.partition("\nmodel: ")
    assert "rank 0 |F0 F1 " in plan
    assert re.search(r"^stage +rank +first unit", plan, re.MULTILINE)
    table = training.partition("memory: planned against measured")[2]
    ratios = re.findall(r"^ +\d+ +[\d.]+ +[\d.]+ +([\d.]+)$", table, re.MULTILINE)
    assert len(ratios) == 2
    assert all(0.9 < float(ratio) < 1.1 for ratio in ratios)  # the same things are counted on both sides
    output = uninterrupted.base / "host0" / "output" / "data"
    assert ElementTree.parse(output / "schedule.svg").getroot().tag.endswith("svg")
    events = json.loads((output / "schedule-trace.json").read_text())["traceEvents"]
    for rank, order in enumerate(schedules.orders("1f1b", 2, 1, 4)):
        spans = sorted((e for e in events if e["ph"] == "X" and e["pid"] == rank), key=lambda e: e["ts"])
        assert [e["name"] for e in spans] == [str(action) for action in order]
        assert all(one["ts"] + one["dur"] <= two["ts"] + 0.01 for one, two in itertools.pairwise(spans))


def test_the_artifact_is_the_whole_plain_model(uninterrupted, text):
    base = uninterrupted.base
    described = json.loads((base / "host0" / "model" / "model.json").read_text())
    names = gpt.GptSpec.__dataclass_fields__
    model = gpt.build(gpt.GptSpec(**{key: value for key, value in described.items() if key in names}), seed=9)
    left = weights(base)
    assert list(left) == list(model.state_dict())
    model.load_state_dict(left)
    held = sequences((text / "a.txt").read_bytes(), 32, 1, "")[-14:].long()
    with torch.no_grad():
        logits = model.eval()(held[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), held[:, 1:].flatten())
    last = epochs(base / "host0")[-1]
    assert last["val_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert last["val_loss"] == described["val_loss"]
    assert last["val_loss"] < 5
    assert json.loads((base / "host0" / "output" / "data" / "summary.json").read_text())["steps"] == STEPS


def test_killed_and_started_again_it_ends_bit_identical(start, uninterrupted):
    same_parts = partitioned(uninterrupted)
    half = f"step: {STEPS // 2 + 2}/"
    run = start(4, SPLIT, CLIPPED, same_parts, {"checkpoint-interval-s": 0.001, "keep-checkpoints": 3}, hold=half)
    run.wait_for(half)
    run.signal(signal.SIGKILL)
    run.codes()
    again = start(4, SPLIT, CLIPPED, same_parts, base=run.base)
    said = ended(again)
    assert "resumed: " in said
    assert f"partition: of {same_parts['partition']}" in said
    assert same(weights(run.base), weights(uninterrupted.base))
    assert [e["val_loss"] for e in epochs(run.base / "host0")] == [
        e["val_loss"] for e in epochs(uninterrupted.base / "host0")
    ]


def test_it_goes_on_in_other_layouts_as_if_nothing_had_been(start, uninterrupted):
    often = {"checkpoint-interval-s": 0.001, "keep-checkpoints": 3}
    run = start(4, SPLIT, CLIPPED, often)
    run.wait_for("checkpoint: ")
    run.signal(signal.SIGKILL)
    run.codes()
    newest = int(checkpoints(run.base)[-1].removeprefix("step-"))
    further = f"step: {newest + 2}/"
    second = start(4, CLIPPED, {"pp": 4, "batch-size": 16, "microbatches": 8}, base=run.base, hold=further)
    second.wait_for(further)
    second.signal(signal.SIGTERM, ranks=[2])
    said = ended(second)
    assert "resumed: " in said
    stopped = int(re.search(r"stopped on request after step (\d+)", said)[1])
    assert checkpoints(run.base)[-1] == f"step-{stopped:08d}"
    assert len(list((run.base / "host0" / "checkpoints" / checkpoints(run.base)[-1]).glob("*.pt"))) == 4
    third = start(2, CLIPPED, {"schedule": "interleaved", "batch-size": 16, "microbatches": 4}, often, base=run.base)
    third.wait_for(f"step: {stopped + 1}/")
    third.wait_for("checkpoint: ")
    third.signal(signal.SIGKILL)
    third.codes()
    assert f"resumed: {run.base}/host0/checkpoints/step-{stopped:08d}, " in third.text()
    last = ended(start(4, CLIPPED, {"pp": 1, "batch-size": 4}, base=run.base))
    assert int(re.search(r"resumed: \S+/step-(\d+), ", last)[1]) > stopped
    assert "4 pipelines of 1 rank " in last
    ours, theirs = epochs(run.base / "host0"), epochs(uninterrupted.base / "host0")
    assert [e["step"] for e in ours] == [e["step"] for e in theirs]
    for one, two in zip(ours, theirs, strict=True):
        assert one["val_loss"] == pytest.approx(two["val_loss"], rel=1e-5)
        assert one["train_loss"] == pytest.approx(two["train_loss"], rel=1e-5)


def test_tied_embeddings_are_one_weight_in_checkpoints_of_any_layout(start, tmp_path):
    tied = {"tied": True, **CLIPPED, "batch-size": 16, "microbatches": 8, "optimizer": "adamw"}
    whole = start(1, tied, base=tmp_path / "whole")
    ended(whole)
    base, stops = tmp_path / "split", []
    for ranks in (2, 1):
        reached = f"step: {3 if ranks == 2 else stops[0] + 2}/"
        run = start(ranks, tied, base=base, hold=reached)
        run.wait_for(reached)
        run.signal(signal.SIGTERM, ranks=[ranks - 1])
        said = ended(run)
        assert ("resumed: " in said) == bool(stops)
        stops.append(int(re.search(r"stopped on request after step (\d+)", said)[1]))
        folder = base / "host0" / "checkpoints" / checkpoints(base)[-1]
        parts = [torch.load(file, weights_only=True) for file in sorted(folder.glob("*.pt"))]
        assert len(parts) == ranks
        holders = [[name for name in ("embed.tokens.weight", "head.weight") if name in part["model"]] for part in parts]
        assert holders == [["embed.tokens.weight", "head.weight"], []][:ranks]
        first, second = (parts[0]["model"][name].data_ptr() for name in holders[0])
        assert first == second  # once in the file
        assert [set(holders[0]) & set(part["optimizer"]) for part in parts] == [{"embed.tokens.weight"}, set()][:ranks]
    said = ended(start(4, tied, {"pp": 4, "explain": True}, base=base))
    assert f"step-{stops[1]:08d}" in said
    assert "embed.tokens.weight is in stages 0, 3" in said
    model = gpt.build(gpt.GptSpec(width=16, depth=4, heads=2, context=32, tied=True), seed=9)
    model.load_state_dict(weights(base))
    assert model.head.weight is model.embed.tokens.weight
    left = weights(base)
    assert left["head.weight"].data_ptr() == left["embed.tokens.weight"].data_ptr()
    for name, tensor in weights(tmp_path / "whole").items():
        torch.testing.assert_close(left[name], tensor, rtol=0, atol=1e-4, msg=name)  # Adam makes steps of noise
    for one, two in zip(epochs(base / "host0"), epochs(tmp_path / "whole" / "host0"), strict=True):
        assert one["val_loss"] == pytest.approx(two["val_loss"], rel=1e-5)
    assert "tied is True there, None here" in refused(start(1, {"epochs": 2, "batch-size": 16}, base=base))


def test_the_loss_falls_on_the_embedded_text_until_a_stop_that_saves(ranks):
    args = words(TINY, {"context": 64, "batch-size": 8, "epochs": 1, "lr": 0.01, "warmup-epochs": 0})
    run = ranks(1, 2, *args, program="algorun_train.jobs.pipeline", hold="step: 60/")
    run.wait_for("step: 60/")
    run.signal(signal.SIGTERM, ranks=[1])
    said = ended(run)
    losses = [float(each) for each in re.findall(r"step: .* train_loss: ([0-9\.]+)", said)]
    assert sum(losses[-10:]) / 10 < 0.7 * losses[0]
    step = int(re.search(r"stopped on request after step (\d+)", said)[1])
    assert checkpoints(run.base) == [f"step-{step:08d}"]
    assert not (run.base / "host0" / "model" / "model.pt").exists()
    assert not (run.base / "host0" / "output" / "data" / "summary.json").exists()


def test_images_go_through_a_vit(ranks):
    args = words(
        {"model": "vit", "width": 16, "depth": 2, "heads": 2, "image-size": 8, "epochs": 2, "batch-size": 256},
        {
            "schedule": "interleaved",
            "microbatches": 4,
            "recompute": True,
            "explain": True,
            "dropout": 0.1,
            "lr": 0.01,
            "warmup-epochs": 0,
        },
    )
    run = ranks(1, 2, *args, program="algorun_train.jobs.pipeline")
    said = ended(run)
    assert "receive buffers; not what is computed again in the backward pass, which the plan has)\n" in said
    first, second = epochs(run.base / "host0")
    assert second["train_loss"] < first["train_loss"]
    assert second["val_accuracy"] > first["val_accuracy"]
    assert "images_per_s" in first


def test_images_from_files_train_as_from_memory_and_only_the_first_stage_decodes_them(ranks, tmp_path):
    """On the second host, which has the last stage, every file breaks off in the middle of its image."""
    table = {"model": "vit", "width": 16, "depth": 2, "heads": 2, "image-size": 8, "epochs": 2, "batch-size": 8}
    found = []
    for name, cache in (("memory", 100), ("files", 0)):
        base = tmp_path / name
        for host in range(2):
            write_images(base / f"host{host}" / "input" / "data" / "train", ["a", "b"], 20)
        if not cache:
            for file in (base / "host1" / "input").rglob("*.*"):
                os.truncate(file, file.stat().st_size * 9 // 10)
        run = ranks(2, 1, *words(table, {"cache-mb": cache}), base=base, program="algorun_train.jobs.pipeline")
        ended(run)
        found.append([(each["train_loss"], each["val_loss"]) for each in epochs(base / "host0")])
    assert found[0] == found[1]


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


@pytest.mark.parametrize(
    ("world", "options", "message"),
    [
        (2, {"schedule": "interleaved", "chunks": 8}, "of the model GPT, which can be cut into "),
        (2, {"model": "vit", "tied": True}, "option --tied: with --model vit; allowed: with gpt"),
        (2, {"context": 5000}, "option --context: 5000 needs 10002 bytes of text, "),
        (2, {"recompute": True, "schedule": "zero-bubble"}, "option --recompute: not with the schedule zero-bubble"),
        (2, {"mp_parameters": '{"partitions": 2, "tensor_parallel_degree": 2}'}, "mp_parameters: tensor_parallel_degree"),
        (2, {"partition": os.devnull}, f"partition file {os.devnull} is not JSON"),
        (2, {"partition": "/proc/none/made.json"}, "option --partition: folder /proc/none cannot be written: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_on_all_ranks_before_any_step(start, world, options, message):
    assert message in refused(start(world, {"epochs": 1}, options))


def test_the_checkpoint_of_another_job_is_refused(start, uninterrupted):
    assert "depth is 4 there, 2 here" in refused(start(2, {"depth": 2}, base=uninterrupted.base))
