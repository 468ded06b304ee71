"""smdistributed.modelparallel.tensorflow: the announcement's script and Keras models on partitions beside one process."""

from __future__ import annotations

import json
import os
import re
import time

import pytest

from algorun_train.parallel import schedules
from algorun_train.parallel.partition.partition_file import read_partition
from tests.conftest import needs_mpi

from . import published
from .conftest import PROGRAMS, RUN_S

pytestmark = [pytest.mark.slow, needs_mpi]
FRAMEWORK = "tensorflow"
KINDS = [
    "dense",
    "convolutions",
    "skip",
    "twice",
    "nested",
    "embedding",
    "attention",
    "recurrent",
    "several",
    "own",
    "functional",
    "depthwise",
]
DEEP = ["convolutions", "skip", "own"]
"""on three partitions too"""
STEPS = 50
LEGACY = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def announced(partitions: int, pipeline: str = "interleaved") -> dict[str, str]:
    """The announcement's parameters, as its estimator passes them on."""
    parameters = {
        "microbatches": 2, "partitions": partitions, "pipeline": pipeline, "optimize": "memory", "horovod": True,
    }  # fmt: skip
    return {"SM_HP_MP_PARAMETERS": json.dumps(parameters), **LEGACY}


def test_the_announced_script_trains_on_two_partitions_as_on_one(run):
    losses, evaluated, has = {}, {}, {}
    for layout, pipeline in (("1x1", "interleaved"), ("1x2", "interleaved"), ("2x1", "simple")):
        parameters = announced(1 if layout == "1x1" else 2, pipeline)
        done = run("mpirun", layout, PROGRAMS / "announced_smp.py", STEPS, **parameters)
        assert done.code == 0, done.text
        losses[layout] = [float(each) for each in re.findall(r"loss (\S+)$", done.out, re.M)]
        evaluated[layout] = set(re.findall(r"evaluated (.*)$", done.out, re.M))
        has[layout] = dict(re.findall(r"rank (\d) of \d has (.*)$", done.out, re.M))
    one = losses.pop("1x1")
    assert len(one) == STEPS
    assert one[-1] < one[0] / 3
    for layout, found in losses.items():
        assert found == pytest.approx(one, abs=1e-5), layout
        assert evaluated[layout] == evaluated["1x1"]
        assert len(evaluated[layout]) == 1  # the metrics, which the step updates, are the same on both ranks
        names = [name for rank in "01" for name in has[layout][rank].split(", ")]
        assert len(names) == len(set(names)) == 6  # each rank has its own variables only
    # What was decided, for people to read; the library that the pipeline entrypoint reads such files with takes it.
    file = read_partition(done.folder / "algo-1" / "output" / "data" / "partition.json")
    assert len(file.stages) == 2
    assert [unit for stage in file.stages for unit in stage] == ["conv2d", "flatten", "dense", "dense_1"]
    assert file.job.microbatch_shapes == ((16, 12, 12, 1), (16,))
    assert all(segment.forward_s > 0 and segment.backward_s > 0 for segment in file.segments)
    # An early step was measured, and drawn below the planned one.
    output = done.folder / "algo-1" / "output" / "data"
    (drawn,) = re.findall(r"smp: schedule: measured step \S+ ms, bubble \S+%; (.*)$", done.out, re.M)
    assert drawn == f"{output / 'schedule.svg'} and {output / 'schedule-trace.json'}"
    picture = (output / "schedule.svg").read_text()
    assert 0 < picture.index("planned: step") < picture.index("measured, step 4: step")
    events = json.loads((output / "schedule-trace.json").read_text())["traceEvents"]
    ranks = [[event["name"] for event in events if event["ph"] == "X" and event["pid"] == rank] for rank in (0, 1)]
    assert ranks == [list(map(str, order)) for order in schedules.orders("gpipe", 2, 1, 2)]
    assert all(event["dur"] > 0 for event in events if event["ph"] == "X")


@pytest.mark.parametrize(
    ("section", "whole", "cut"), [("auto", "1x1", "1x2"), ("horovod", "1x2", "2x2"), ("manual", "1x1", "2x1")]
)
def test_the_developer_guide_s_scripts_train_on_two_partitions_as_on_one(section, whole, cut, run):
    """On one host and on two; with Horovod in two replicas, whose batches differ."""
    losses, accuracies = {}, {}
    for partitions, layout in ((1, whole), (2, cut)):
        given = {
            "microbatches": 2,
            "partitions": partitions,
            "pipeline": "interleaved",
            "horovod": section == "horovod",
        }
        if section == "manual" and partitions == 2:
            given |= {"auto_partition": False, "default_partition": 0}
        parameters = {"SM_HP_MP_PARAMETERS": json.dumps(given), **LEGACY}
        program = PROGRAMS / "smp_tf_guide.py"
        section_of_one = "auto" if section == "manual" and partitions == 1 else section
        done = run("mpirun", layout, program, section_of_one, STEPS, **parameters)
        assert done.code == 0, done.text
        found = re.findall(r"replica (\d) loss (\S+)$", done.out, re.M)
        losses[partitions] = {replica: [float(loss) for at, loss in found if at == replica] for replica, _ in found}
        rows = re.findall(r"replica (\d epoch \d) accuracy (\S+)$", done.out, re.M)
        assert len(rows) == 2 * int(layout[0]) * int(layout[-1])  # on every rank, whatever its partition
        accuracies[partitions] = {epoch: float(accuracy) for epoch, accuracy in rows}
        assert {(epoch, float(accuracy)) for epoch, accuracy in rows} == set(accuracies[partitions].items())
    assert losses[1].keys() == losses[2].keys() == set("01" if section == "horovod" else "0")
    for replica, one in losses[1].items():
        assert len(one) == STEPS
        assert one[-1] < one[0] / 3
        assert losses[2][replica] == pytest.approx(one, abs=1e-5)
    assert accuracies[2] == pytest.approx(accuracies[1], abs=1e-5)
    if section == "manual":
        has = dict(re.findall(r"rank (\d) has (.*)$", done.out, re.M))
        assert has == {"0": "conv2d conv2d", "1": "dense dense dense_1 dense_1"}


EPOCH = re.compile(
    r"^\[(\d) \S+\] Epoch (\d), Loss: (\S+), Accuracy: (\S+), Test loss (\S+), test accuracy (\S+)$", re.M
)


@pytest.mark.parametrize(
    ("page", "layouts"), [(published.SMP_TF2, ("1x1", "1x2")), (published.SMP_TF2_HVD, ("1x2", "1x4"))], ids=["tf2", "tf2_hvd"]
)  # fmt: skip
def test_aws_s_scripts_train_unmodified_on_two_partitions_as_on_one(page, layouts, run, script, tmp_path, monkeypatch):
    """55 steps in 5 epochs; tf2_hvd.py with two replicas, whose batches differ."""
    name = page.path.rpartition("/")[2]
    path = script(page, name)
    aws = tmp_path / "bin" / "aws"
    (tmp_path / ".keras").mkdir()
    aws.parent.mkdir()
    aws.write_text('#!/bin/sh\necho "$@" >> called.txt\n')
    aws.chmod(0o755)
    monkeypatch.setenv("PATH", f"{aws.parent}:{os.environ['PATH']}")
    rows = {}
    for partitions, layout in enumerate(layouts, start=1):
        done = run(
            "mpirun", layout, PROGRAMS / "with_digits.py", "smp", path, HOME=str(tmp_path), **announced(partitions)
        )
        assert done.code == 0, done.text
        found = [(int(rank) // partitions, *map(float, numbers)) for rank, *numbers in EPOCH.findall(done.text)]
        assert len(found) == 5 * int(layout[-1])
        rows[partitions] = sorted(set(found))  # ranks of one pipeline print the same
    assert len(rows[1]) == len(rows[2]) == 5 * (int(layouts[0][-1]))
    for one, two in zip(rows[1], rows[2], strict=True):
        assert two == pytest.approx(one, abs=1e-5)
    if page is published.SMP_TF2:
        assert (tmp_path / "called.txt").read_text().splitlines() == 2 * [
            "s3 sync --quiet /opt/ml/checkpoints s3://bucket/job/checkpoints/algo-1/"
        ]
        assert (tmp_path / "checkpoints" / "ckpt-1.index").is_file()


@pytest.mark.parametrize(("kind", "partitions"), [*((kind, 2) for kind in KINDS), *((kind, 3) for kind in DEEP)])
def test_gradients_are_those_of_one_process(kind, partitions, run):
    done = run("mpirun", f"1x{partitions}", PROGRAMS / "smp_keras_models.py", kind, partitions, **LEGACY)
    assert done.code == 0, done.text
    rows = re.findall(
        r"rank (\d): (\d+) gradients up to (\S+), off by (\S+), loss (\S+), variables (\S+)$", done.out, re.M
    )
    assert sorted(row[0] for row in rows) == [str(rank) for rank in range(partitions)]
    for _, count, size, *off in rows:
        assert int(count) > 0
        assert float(size) > 1e-3
        assert max(map(float, off)) < 1e-10


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("tape", "tf.GradientTape inside an @smp.step function; allowed: optimizer.get_gradients"),
        ("layers", '"partitions": 2; allowed: 1 .. 1, the direct layers of the model that have weights'),
        ("batch", "argument 'x' has a batch of 9 along axis 0; allowed: multiples of microbatches = 2"),
        (
            "shapes",
            r"the ranks of one pipeline call different things: rank 0 calls @smp.step step(float64[8, 4]), rank 1 calls",
        ),
        ("clip", "which is computed from gradients; allowed: what optimizer.get_gradients returns"),
        ("outside", "smp.DistributedModel called outside of an @smp.step function"),
        ("checkpoint", "on another rank; allowed: model.variables, which are this rank's"),
    ],
)
def test_a_fault_is_one_error_on_all_ranks(fault, says, run):
    done = run("mpirun", "1x2", PROGRAMS / "smp_tf_faults.py", fault, "saved", TF_CPP_MIN_LOG_LEVEL="2")
    assert done.code == 1, done.text
    assert "no error" not in done.text
    assert says in done.failure("algo-1"), done.text
    ranks = set(re.findall(rf"^\[(\d) \S+\] .*UserError: .*{re.escape(says)}", done.text, re.M))
    assert ranks == {"0", "1"}, done.text


def test_bfloat16_trains_on_partitions_as_on_one(run):
    losses = {}
    for layout, partitions in (("1x1", 1), ("1x2", 2)):
        done = run("mpirun", layout, PROGRAMS / "smp_tf_precision.py", partitions, "bf16", **LEGACY)
        assert done.code == 0, done.text
        losses[layout] = [float(each) for each in re.findall(r"loss (\S+)$", done.out, re.M)]
    assert len(losses["1x1"]) == 6
    assert losses["1x2"] == pytest.approx(losses["1x1"], abs=1e-6)
    assert losses["1x1"][-1] < losses["1x1"][0] / 2


@pytest.mark.parametrize("mode", ["fp16", "fp16-legacy"])
def test_a_loss_scale_follows_the_gradients_of_one_rank(mode, run):
    done = run("mpirun", "1x1", PROGRAMS / "smp_tf_precision.py", 1, mode, **LEGACY)
    assert done.code == 0, done.text
    losses = [float(each) for each in re.findall(r"loss (\S+)$", done.out, re.M)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("mode", "partitions", "says"),
    [
        ("fp16", 2, "LossScaleOptimizer on 2 ranks, each of which would change the scale and leave out steps by its own"),
        ("fp16-legacy", 2, "LossScaleOptimizer on 2 ranks, each of which would change the scale"),
        ("fp16", 1, "LossScaleOptimizer on 2 ranks, each of which would change the scale"),
        ("clip", 2, "Adam(global_clipnorm=1.0) with 2 partitions, each of which would clip by the norm of its own gradients"),
    ],
)  # fmt: skip
def test_what_follows_from_all_gradients_is_one_error_on_all_ranks(mode, partitions, says, run):
    done = run("mpirun", "1x2", PROGRAMS / "smp_tf_precision.py", partitions, mode, **LEGACY)
    assert done.code == 1, done.text
    # In the script's tf.function too the first line says what is wrong.
    assert f"UserError: @smp.step forward_backward: {says}" in done.failure("algo-1").splitlines()[0]
    assert set(re.findall(rf"^\[(\d) \S+\] .*UserError: .*{re.escape(says)}", done.text, re.M)) == {"0", "1"}, done.text


@pytest.mark.parametrize("optimizer", ["adam", "legacy"])
def test_a_checkpoint_resumes_on_partitions_and_in_plain_tensorflow(optimizer, run, tmp_path):
    program, folder = PROGRAMS / "smp_tf_checkpoints.py", tmp_path / "checkpoints"

    def losses(done):
        assert done.code == 0, done.text
        return [float(each) for each in re.findall(r"step \d loss (\S+)$", done.out, re.M)]

    whole = run("mpirun", "1x2", program, 2, "export", folder, optimizer, **LEGACY)
    expected = losses(whole)
    assert len(expected) == 6
    assert set(re.findall(r"rank (\d) saved (\S+) as number 1$", whole.out, re.M)) == {
        (rank, str(folder / "ckpt-1")) for rank in "01"
    }
    for mode in ("before", "after"):
        done = run("mpirun", "1x2", program, 2, mode, folder, optimizer, **LEGACY)
        assert losses(done) == expected[3:], mode
    plain = run("mpirun", "1x1", program, 1, "plain", folder, optimizer, **LEGACY)
    assert losses(plain) == pytest.approx(expected[3:], abs=1e-6)
    (off,) = re.findall(r"read 6 steps; the exported model is off by (\S+)$", plain.out, re.M)
    assert float(off) < 1e-6


@pytest.mark.parametrize("mode", ["before", "after"])
def test_a_checkpoint_with_averages_is_not_read_into_partitions(mode, run, tmp_path):
    """TensorFlow would give a rank other variables' averages, without an error where shapes are equal."""
    program = PROGRAMS / "smp_tf_checkpoints.py"
    whole = run("mpirun", "1x1", program, 1, "export", tmp_path, "ema", **LEGACY)
    assert whole.code == 0, whole.text
    done = run("mpirun", "1x2", program, 2, mode, tmp_path, "ema", **LEGACY)
    assert done.code == 1, done.text
    says = "smp.CheckpointManager: Adam has the variables of one partition only; allowed: an optimizer whose"
    assert says in done.failure("algo-1"), done.text
    assert set(re.findall(rf"^\[(\d) \S+\] .*UserError: .*{re.escape(says)}", done.text, re.M)) == {"0", "1"}, done.text


@pytest.mark.parametrize(
    ("mode", "optimizer", "says"),
    [
        (
            "export",
            "ema",
            "smp.CheckpointManager: Adam has the variables of one partition only; allowed: an optimizer whose",
        ),
        ("missing", "adam", "ckpt-9.index; allowed: a checkpoint that every host has"),
    ],
)
def test_a_checkpoint_that_cannot_be_is_one_error_on_all_ranks(mode, optimizer, says, run, tmp_path):
    done = run("mpirun", "1x2", PROGRAMS / "smp_tf_checkpoints.py", 2, mode, tmp_path, optimizer, **LEGACY)
    assert done.code == 1, done.text
    assert says in done.failure("algo-1"), done.text
    assert set(re.findall(rf"^\[(\d) \S+\] .*UserError: .*{re.escape(says)}", done.text, re.M)) == {"0", "1"}, done.text


def test_a_resumed_job_uses_the_partition_beside_its_checkpoints(run, tmp_path):
    """As it is, edited by hand, of a job with other microbatches, and with a layer missing."""
    folder = tmp_path / "checkpoints"
    file = folder / "partition.json"

    def job(mode: str):
        return run("mpirun", "1x2", PROGRAMS / "smp_tf_checkpoints.py", 2, mode, folder, "adam", **LEGACY)

    def layers(done):
        (text,) = re.findall(r"smp: layers of each partition: (.*)$", done.out, re.M)
        return text

    first = job("export")
    assert first.code == 0, first.text
    assert f"smp: partition written to {first.folder}" in first.out
    table = json.loads(file.read_text())
    front, back = (stage["units"] for stage in table["stages"])
    back.insert(0, front.pop())
    file.write_text(json.dumps(table))
    edited = job("before")
    assert edited.code == 0, edited.text
    assert f"smp: partition of {file}\n" in edited.out
    assert layers(edited) == f"0: {', '.join(front)}; 1: {', '.join(back)}" != layers(first)
    for rank, units in enumerate((front, back)):  # equal on all ranks
        (names,) = re.findall(rf"rank {rank} has (.*)$", edited.out, re.M)
        assert {name.split("/")[1] for name in names.split(", ")} == set(units)
    assert (edited.folder / "algo-1" / "output" / "data" / "partition.json").read_bytes() == file.read_bytes()

    file.write_text(json.dumps(table | {"job": table["job"] | {"microbatches": 4}}))
    other = job("before")
    assert other.code == 0, other.text
    assert f"smp: partition {file} is of another job, and not used: microbatches 4 then, 2 now\n" in other.out
    assert f"smp: partition written to {other.folder}" in other.out

    lost = back.pop()
    file.write_text(json.dumps(table))
    refused = job("before")
    assert refused.code == 1, refused.text
    says = f"partition file {file}: stages: unit {lost} is missing; allowed: every unit once; fix: put {lost} after"
    ranks = re.findall(rf"^\[(\d) \S+\] .*UserError: {re.escape(says)}", refused.text, re.M)
    assert sorted(ranks) == ["0", "1"], refused.text


def test_a_second_attempt_uses_the_partition_of_the_first(run):
    done = run("mpirun", "1x2", PROGRAMS / "smp_tf_faults.py", "killed-once", ALGORUN_RESTARTS="1", **LEGACY)
    assert done.code == 0, done.text
    file = done.folder / "algo-1" / "output" / "data" / "partition.json"
    assert re.findall(r"smp: partition (.*)$", done.out, re.M) == [f"written to {file}", f"of {file}"]


def test_a_rank_has_memory_for_its_own_partition_after_the_first_step(run):
    """200 MiB of weights and their moments: those of its partition. oneDNN and glibc keep freed memory, unless they are told not to."""
    quiet = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = run("mpirun", "1x2", PROGRAMS / "smp_tf_memory.py", 2, 2560, **quiet, **LEGACY)
    assert done.code == 0, done.text
    rows = re.findall(r"rank \d holds (\d+) of (\d+) of (\d+) bytes; resident (\d+) (\d+) (\d+)$", done.out, re.M)
    assert len(rows) == 2
    for row in rows:
        held, own, full, *resident = map(int, row)
        assert full == 3 * 8 * 4 * 2560**2
        assert own <= held < own + 1024  # scalars, such as the number of iterations
        assert max(resident) < 1.1 * own
    assert sum(int(own) for _, own, *_ in rows) == full


def test_replicas_train_as_one_process_with_the_whole_batch(run):
    program, losses, weights = PROGRAMS / "smp_tf_replicas.py", {}, {}
    jobs = {
        "one": ("1x1", 1, "cluster"),
        "cluster": ("1x4", 2, "cluster"),
        "spread": ("1x4", 2, "spread"),
        "flat": ("1x2", 1, "cluster"),
    }
    for name, (layout, partitions, placement) in jobs.items():
        done = run("mpirun", layout, program, partitions, placement, "sgd", **LEGACY)
        assert done.code == 0, done.text
        rows = re.findall(r"rank (\d) step (\d) loss (\S+)$", done.out, re.M)
        ranks = {rank for rank, _, _ in rows}
        losses[name] = [sum(float(loss) for _, at, loss in rows if int(at) == n) / len(ranks) for n in range(8)]
        found = [
            (json.loads(places), float(total))
            for places, total in re.findall(r"places (\{.*\}) weights (\S+)$", done.out, re.M)
        ]
        assert len(found) == len(ranks) == int(layout[-1])
        by_stage = {}
        for places, total in found:
            by_stage.setdefault(places["mp_rank"], set()).add(total)
            assert places["mp_size"] == partitions
            assert places["dp_size"] == len(ranks) // partitions
            at = (places["dp_rank"], places["mp_rank"])
            cluster = placement == "cluster"
            assert places["rank"] == (at[0] * partitions + at[1] if cluster else at[1] * places["dp_size"] + at[0])
        assert all(len(totals) == 1 for totals in by_stage.values()), by_stage  # replicas are equal to the last bit
        weights[name] = sum(total for totals in by_stage.values() for total in totals)
    for name in ("cluster", "spread", "flat"):
        assert losses[name] == pytest.approx(losses["one"], abs=1e-5), name
        assert weights[name] == pytest.approx(weights["one"], abs=1e-4), name


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ("changed", "which is computed from gradients; allowed: what optimizer.get_gradients returns"),
        (
            "outputs",
            "StepOutput.outputs of a gradient with replicas; allowed: accumulate(), reduce_mean() and reduce_sum()",
        ),
    ],
)
def test_gradients_that_replicas_would_not_share_are_one_error(use, says, run):
    done = run("mpirun", "1x2", PROGRAMS / "smp_tf_replicas.py", 1, "cluster", use, **LEGACY)
    assert done.code == 1, done.text
    assert says in done.failure("algo-1"), done.text
    ranks = set(re.findall(rf"^\[(\d) \S+\] .*UserError: .*{re.escape(says)}", done.text, re.M))
    assert ranks == {"0", "1"} or (ranks and use == "outputs"), done.text  # there each rank fails by itself


def test_layers_lie_where_smp_partition_says(run):
    losses, has, hooks = {}, {}, {}
    for layout, mode in (("1x1", "manual"), ("1x2", "manual"), ("1x2", "auto")):
        done = run("mpirun", layout, PROGRAMS / "smp_tf_manual.py", layout[-1], mode, **LEGACY)
        assert done.code == 0, done.text
        key = (layout, mode)
        losses[key] = [float(each) for each in re.findall(r"rank 0 loss (\S+)$", done.out, re.M)]
        has[key] = {
            rank: {name.split("/")[1] for name in names.split()}
            for rank, names in re.findall(r"rank (\d) has (.*)$", done.out, re.M)
        }
        hooks[key] = dict(re.findall(r"rank (\d) hook (.*)$", done.out, re.M))
    assert losses["1x2", "manual"] == pytest.approx(losses["1x1", "manual"], abs=1e-6)
    assert losses["1x2", "auto"] == pytest.approx(losses["1x1", "manual"], abs=1e-6)
    assert len(losses["1x1", "manual"]) == 4
    assert has["1x2", "manual"] == {"0": {"wide"}, "1": {"one", "two"}}
    assert hooks["1x2", "manual"] == {"0": "True 2", "1": "True 4"}  # this rank's variables, before the first pass
    assert hooks["1x1", "manual"] == {"0": "True 6"}


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("falling", "smp.partition: the layers have partitions wide 1, flatten 0, one 0, two 0, in the order of their calls; allowed: rising"),
        ("missing", "smp.partition: no layer with weights in partition 1 (wide 0, one 0, two 0); allowed: some in each"),
        ("twice", "smp.partition: layer one is called in partitions 0 and 1; allowed: one of them"),
        ("number", "smp.partition(9); allowed: 0 .. 1; fix: name a partition that exists"),
        ("late", "smp.register_post_partition_hook after the first step; allowed: before it"),
    ],
)  # fmt: skip
def test_partitions_that_cannot_be_are_one_error_on_all_ranks(mode, says, run):
    done = run("mpirun", "1x2", PROGRAMS / "smp_tf_manual.py", 2, mode, **LEGACY)
    assert done.code == 1, done.text
    assert says in done.failure("algo-1"), done.text
    assert set(re.findall(rf"^\[(\d) \S+\] .*UserError: .*{re.escape(says)}", done.text, re.M)) == {"0", "1"}, done.text


@pytest.mark.parametrize("engine", ["mpirun", "native"])
def test_a_killed_rank_ends_the_job_with_its_code_and_name(engine, run):
    done = run(engine, "1x2", PROGRAMS / "smp_tf_faults.py", "killed", **LEGACY)
    assert done.code == 137, done.text
    assert done.failure("algo-1").startswith("signal: rank 1 on algo-1, exit 137 (SIGKILL)"), done.failure("algo-1")


@pytest.mark.parametrize("engine", ["mpirun", "native"])
def test_a_stop_ends_all_ranks_after_the_same_step_with_a_checkpoint(engine, run, begin, tmp_path):
    """Two hosts; the checkpoint has the steps, and a job that resumes the same weights."""
    program, folder = PROGRAMS / "smp_tf_checkpoints.py", tmp_path / "checkpoints"
    job = begin("2x1", program, 2, "stop", folder, "adam", engine=engine, **LEGACY)
    job.wait_for(" trains", 2, timeout=RUN_S)
    started = time.monotonic()
    job.process.terminate()
    assert job.end() == 0, job.log.read_text()
    print(f"seconds after the stop: {time.monotonic() - started:.1f}")
    state = r"^\[\d \S+\] rank \d has (\d+) steps and output (\S+)$"
    text = job.log.read_text()
    found = re.findall(state, text, re.M)
    assert len(found) == 2
    assert len(set(found)) == 1
    assert int(found[0][0]) >= 5
    assert text.count(f" saved {folder / 'ckpt-1'}\n") == 2
    resumed = run(engine, "2x1", program, 2, "stopped", folder, "adam", **LEGACY)
    assert resumed.code == 0, resumed.text
    assert re.findall(state, resumed.out, re.M) == found


def test_more_ranks_than_partitions_need_replicas(run):
    done = run("mpirun", "1x4", PROGRAMS / "smp_tf_faults.py", "replicas", TF_CPP_MIN_LOG_LEVEL="2")
    assert done.code == 1, done.text
    assert "mp_parameters: partitions = 2 on 4 ranks; allowed: 4 without ddp" in done.failure("algo-1")


def test_keras_3_is_refused_on_import(run):
    done = run("mpirun", "1x1", PROGRAMS / "smp_tf_faults.py", "keras3", TF_CPP_MIN_LOG_LEVEL="2")
    assert done.code == 1, done.text
    assert "tf.keras is Keras 3 (TF_USE_LEGACY_KERAS='' when TensorFlow was imported)" in done.failure("algo-1")


@pytest.mark.parametrize(("engine", "layout", "section"), [("native", "2x2", "horovod"), ("torchrun", "1x2", "auto")])
def test_other_launchers_ranks_train_as_those_of_mpirun(engine, layout, section, run):
    """By Gloo in place of MPI; two replicas on two hosts, whose ranks also reduce by Horovod's names."""
    given = {"microbatches": 2, "partitions": 2, "pipeline": "interleaved", "horovod": section == "horovod"}
    losses = {}
    for each in (engine, "mpirun"):
        program, parameters = PROGRAMS / "smp_tf_guide.py", {"SM_HP_MP_PARAMETERS": json.dumps(given)}
        done = run(each, layout, program, section, 10, **parameters, **LEGACY)
        assert done.code == 0, done.text
        losses[each] = sorted(re.findall(r"replica (\d) loss (\S+)$", done.out, re.M), key=lambda row: row[0])
    assert len(losses["mpirun"]) == 10 * int(layout[0])
    for (replica, found), (same, expected) in zip(losses[engine], losses["mpirun"], strict=True):
        assert replica == same
        assert float(found) == pytest.approx(float(expected), abs=1e-5)


def test_ranks_of_two_launchers_are_refused(run):
    done = run("native", "1x2", PROGRAMS / "smp_tf_faults.py", "none", PMI_SIZE="1", TF_CPP_MIN_LOG_LEVEL="2")
    assert done.code == 1, done.text
    assert "WORLD_SIZE is 2, but MPI has 1 rank; allowed: ranks that mpirun has started" in done.failure("algo-1")
