"""`ddp --model FOLDER --tp N`: groups of ranks compute each layer together; the result is that of one process."""

from __future__ import annotations

import functools
import io
import json
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from algorun_train.checkpoint.shards import model_state
from algorun_train.common.errors import UserError
from algorun_train.jobs import check
from tests.conftest import needs_mpi
from tests.train.model_folders import write_language_model, write_text, write_tokenizer, write_vit
from tests.train.tiny_models import tiny_model
from tests.train.training_runs import TRANSFORMERS, Ranks, epochs, load_once, once

from .test_ddp_lora import STEP
from .test_folder_families import INSIDE, run, write
from .test_folder_layouts import NEAR, distances
from .test_measure import simulate

load_once(*TRANSFORMERS, "tokenizers", "peft")
KINDS = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "phi3", "gpt_neox")
EXPERTS = {  # a family, and a width of its experts of which torch cannot multiply a part: then experts stay whole
    "mixtral": ("mixtral", {}),
    "mixtral whole": ("mixtral", {"intermediate_size": 44}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe whole": ("qwen3_moe", {"moe_intermediate_size": 20}),
}
WHOLE = tuple(kind for kind in EXPERTS if kind.endswith("whole"))
# They compute norms, or routing weights, in float32 whatever their type is. Of whole experts one rank has all of a routing weight's
# gradient, so nothing is added up.
PARTLY_IN_FP32 = {"gemma2", "mixtral"}
# ranks: layouts as folder_step.py reads them, with tp at the end
TENSOR = {2: ["0,1,{},2"], 4: ["0,1,{},2", "0,2,{},2"]}


@pytest.mark.slow(but=["float64-2"])
@pytest.mark.parametrize("world", TENSOR)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_the_first_step_is_that_of_one_process(tmp_path, precision, world):
    kinds = KINDS if world > 2 or precision != "float64" else ("llama", "qwen3", "gemma2")
    kinds += ("mixtral whole",) if world == 2 and precision == "float64" else tuple(EXPERTS)
    folders = [made_of(kind, tmp_path) for kind in kinds]
    compare_with_one_process(tmp_path, folders, world, TENSOR[world], precision)


def made_of(kind, base, **changes):
    family, own = EXPERTS.get(kind, (kind, {}))
    return write(base / kind.replace(" ", "_"), family, **(own | changes))


def compare_with_one_process(base, folders, world, layouts, precision):
    alone = run(base / "alone", 1, folders, ["0,1"], precision)
    layouts = [layout.format(precision) for layout in layouts]
    found = steps(base / "ranks", world, folders, layouts)
    for kind in [folder.name for folder in folders]:
        one = alone[kind][f"0,1,{precision}"]
        near = max(NEAR[precision], INSIDE) if kind in PARTLY_IN_FP32 else NEAR[precision]
        for layout in layouts:
            other = found[kind][layout]
            far = distances(other, one)
            worst = max(far, key=far.__getitem__)
            print(f"{kind} {layout} on {world}: {far[worst]:.1e} {worst}")
            assert far[worst] < near, (kind, worst)
            assert other["loss"] == pytest.approx(one["loss"], rel=1e-12 if precision == "float64" else 1e-5), kind


LARGER = {4: ["0,1,{},4"], 8: ["0,1,{},4", "0,2,{},4", "0,4,{},2", "0,2,{},2"]}


@pytest.mark.slow
@pytest.mark.parametrize("world", LARGER)
def test_the_first_step_of_larger_groups_is_that_of_one_process(tmp_path, world):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    folders = [made_of(kind, tmp_path, **heads) for kind in ("llama", "qwen3", "mistral", *WHOLE)]
    compare_with_one_process(tmp_path, folders, world, LARGER[world], "float64")


def steps(base, world, folders, layouts):
    """What folder_step.py found for these layouts."""
    program = str(Path(__file__).parents[1] / "programs" / "folder_step.py")
    ranks = Ranks(base, 1, world, [":".join(map(str, folders)), str(base / "found.pt"), *layouts], program=program)
    try:
        assert ranks.codes() == [0] * world, "\n".join(map(ranks.text, range(world)))
    finally:
        ranks.kill()
    return torch.load(base / "found.pt", weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks_", "shards"), [(2, 1), (4, 1), (4, 2)])
def test_adapters_beside_split_weights_have_the_gradients_of_one_process(ranks, tmp_path, ranks_, shards):
    folder = write_language_model(tmp_path / "llama")
    found = []
    for slots, layout in ((1, ["1", "1"]), (ranks_, [str(shards), "2"])):
        out = tmp_path / f"{slots}.pt"
        job = ranks(1, slots, str(folder), str(out), *layout, "q_proj,o_proj,up_proj,down_proj,lm_head", program=STEP)
        assert job.codes() == [0] * slots, job.text()
        found.append(torch.load(out, weights_only=True))
    one, other = found
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-12)
    assert one["gradients"].keys() == other["gradients"].keys()
    for name, gradient in one["gradients"].items():
        assert torch.allclose(other["gradients"][name], gradient, rtol=0, atol=1e-10 * float(gradient.norm())), name


RANKS = str(Path(__file__).parents[1] / "programs" / "tensor_ranks.py")


def measured(ranks, tmp_path, folder, world, *layout):
    job = ranks(1, world, str(folder), str(tmp_path / "out"), *map(str, layout), program=RANKS)
    assert job.codes() == [0] * world, job.text()
    return [json.loads((tmp_path / f"out.{rank}").read_text()) for rank in range(world)]


@pytest.mark.slow(but=["2-2-1"])
@pytest.mark.parametrize(("world", "tp", "shards"), [(2, 2, 1), (4, 4, 1), (4, 2, 1), (4, 2, 2)])
def test_a_rank_holds_its_part_of_weights_gradients_and_moments(ranks, tmp_path, world, tp, shards):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    folder = write_language_model(tmp_path / "llama", **heads)
    words, width, inner, layers = 300, 32, 48, 2
    split = 2 * words * width + layers * (4 * width * width + 3 * width * inner)
    norms = (2 * layers + 1) * width
    expected = 4 * (split / tp + norms) / shards
    for row in measured(ranks, tmp_path, folder, world, tp, shards):
        assert row["weights"] == pytest.approx(expected, rel=0.01)
        assert row["gradients"] == pytest.approx(expected, rel=0.01)
        assert row["moments"] == pytest.approx(2 * expected, rel=0.01)
        assert row["logits"] == words // tp
        assert row["on DTensors"] == 0  # they would take longer than the products


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixtral", "mixtral whole"])
@pytest.mark.parametrize(("world", "tp", "shards"), [(2, 2, 1), (4, 4, 1), (4, 2, 2)])
def test_a_rank_holds_its_part_of_the_experts(ranks, tmp_path, world, tp, shards, kind):
    folder = made_of(kind, tmp_path, num_attention_heads=4, num_key_value_heads=4)
    whole = {"norm": 0, "gate": 0, "rest": 0}
    for name, weight in AutoModelForCausalLM.from_pretrained(folder).named_parameters():
        whole["norm" if "norm" in name else "gate" if name.endswith("mlp.gate.weight") else "rest"] += weight.numel()
    assert min(whole.values()) > 0
    expected = 4 * (whole["rest"] / tp + whole["norm"] + whole["gate"]) / shards
    for row in measured(ranks, tmp_path, folder, world, tp, shards):
        assert row["weights"] == pytest.approx(expected, rel=0.01)
        assert row["gradients"] == pytest.approx(expected, rel=0.01)
        assert row["moments"] == pytest.approx(2 * expected, rel=0.01)


# `make test` has both kinds of dropout in the next test.
@pytest.mark.slow
@pytest.mark.parametrize(("world", "shards"), [(2, 1), (4, 1), (4, 2)])
def test_ranks_of_a_group_drop_the_same_activations_and_stay_equal(ranks, tmp_path, world, shards):
    dropout = {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attention_dropout": 0.2}
    tiny_model("phi", "PhiForCausalLM", vocab_size=300, **dropout).save_pretrained(tmp_path / "phi")
    rows = measured(ranks, tmp_path, write_tokenizer(tmp_path / "phi"), world, 2, shards)
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        assert one["whole"] == other["whole"] != {}
        assert one["next"] == other["next"]
    if world > 2:
        assert rows[0]["next"] != rows[2]["next"]


def test_ranks_drop_other_parts_of_what_they_share_and_the_same_of_the_rest(ranks, tmp_path):
    """Heads that two ranks drop alike would be no dropout of all heads; recomputed activations are those of the forward pass."""
    dropout = {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attention_dropout": 0.5}
    tiny_model("phi", "PhiForCausalLM", vocab_size=300, **dropout).save_pretrained(tmp_path / "phi")
    folder = write_tokenizer(tmp_path / "phi")
    program = str(Path(__file__).parents[1] / "programs" / "split_dropout.py")
    job = ranks(1, 2, str(folder), str(tmp_path / "out"), program=program)
    assert job.codes() == [0, 0], job.text()
    one, other = (json.loads((tmp_path / f"out.{rank}").read_text()) for rank in range(2))
    pairs = list(zip(one["plain"]["kept"], other["plain"]["kept"], strict=True))
    heads = [mine == its for mine, its in pairs if mine[0] == 4]
    assert heads
    assert not any(heads)
    rest = [mine == its for mine, its in pairs if mine[0] == 3]
    assert rest
    assert all(rest)
    assert len({mask for dims, mask in one["plain"]["kept"] if dims == 4}) == len(heads)  # another in each layer
    for rank in (one, other):
        assert rank["again"]["sums"] == rank["plain"]["sums"]


FEW = ["--epochs", "2", "--context", "16", "--clip-norm", "0.5", "--log-interval", "1"]
# hosts, ranks per host, options. 16 sequences a step in all of them.
LAYOUTS = {
    "alone": (1, 1, ["--batch-size", "16"]),
    "dp4": (1, 4, ["--batch-size", "4"]),
    "shard4": (4, 1, ["--batch-size", "4", "--shard", "all"]),
    "tp2": (1, 2, ["--batch-size", "8", "--accumulation", "2", "--tp", "2"]),
    "tp2xdp2": (2, 2, ["--batch-size", "8", "--tp", "2", "--recompute", "True"]),
    "tp2xshard2": (2, 2, ["--batch-size", "8", "--tp", "2", "--shard", "all"]),
    "pp2xtp2": (2, 2, ["--batch-size", "16", "--pp", "2", "--tp", "2", "--microbatches", "4"]),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A tied Qwen3, whose norms of heads see some of the heads, and text."""
    base = tmp_path_factory.mktemp("data")
    return write(base / "qwen3", "qwen3", tie_word_embeddings=True), write_text(base / "text", 120)


def started(base, data, layout, *options, hold=None):
    hosts, slots, own = LAYOUTS[layout]
    folder, text = data
    words = once([*FEW, "--model", str(folder), "--train", str(text), *own, *options])
    program = "algorun_train.jobs.pipeline" if layout.startswith("pp") else "algorun_train.jobs.ddp"
    return Ranks(base, hosts, slots, words, hold=hold, program=program)


def train(base, data, layout, *options):
    hosts, slots, _ = LAYOUTS[layout]
    with started(base, data, layout, *options) as ranks:
        assert ranks.codes() == [0] * (hosts * slots), "\n".join(map(ranks.text, range(hosts * slots)))
        return ranks.text()


@pytest.fixture(scope="module")
def straight(tmp_path_factory, data):
    """For a layout the folder of a run of one epoch; it lies in `first` as well."""

    @functools.cache
    def made(layout):
        base = tmp_path_factory.mktemp(layout)
        train(base, data, layout, "--epochs", "1")
        shutil.copytree(base, base / "first")
        return base

    return made


@pytest.fixture(scope="module")
def straight_on(straight, data):
    """The second epoch of one process that goes on from its own checkpoint."""

    @functools.cache
    def made():
        base = straight("alone") / "on"
        shutil.copytree(straight("alone") / "first" / "host0", base / "host0")
        train(base, data, "alone")
        return epochs(base / "host0")[-1]

    return made


def united(base, to):
    """The checkpoints of all hosts in one folder, as SageMaker copies them to the hosts of the next job."""
    for folder in base.glob("host*/checkpoints/step-*"):
        shutil.copytree(folder, to / folder.name, dirs_exist_ok=True)
    return to


@pytest.mark.slow
# How a checkpoint was written and how it is read are independent: each layout writes one and reads one.
@pytest.mark.parametrize(
    ("wrote", "reads"),
    [
        ("tp2", "alone"),
        ("alone", "tp2xshard2"),
        ("tp2xshard2", "dp4"),
        ("dp4", "tp2xdp2"),
        ("tp2xdp2", "pp2xtp2"),
        ("pp2xtp2", "shard4"),
        ("shard4", "tp2"),
    ],
)
def test_a_layout_goes_on_from_another_s_checkpoint(straight, straight_on, data, tmp_path, wrote, reads):
    base, host = straight(wrote), tmp_path / "host0"
    saved = model_state(united(base / "first", tmp_path / "saved"))
    artifact = load_file(base / "host0" / "model" / "model.safetensors")
    assert {f"model.{name}" for name in artifact} == saved.keys() - {"model.lm_head.weight"}
    assert all(torch.equal(artifact[name], saved[f"model.{name}"]) for name in artifact)
    for number in range(LAYOUTS[reads][0]):
        united(base / "first", tmp_path / f"host{number}" / "checkpoints")
    assert "resumed: " in train(tmp_path, data, reads)
    for key in ("train_loss", "val_loss", "val_accuracy"):
        assert epochs(host)[-1][key] == pytest.approx(straight_on()[key], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp2xdp2", "pp2xtp2"])
def test_a_stop_on_one_rank_saves_once_and_the_resumed_run_ends_bit_identical(data, tmp_path, layout):
    """So each sample is trained once, and ranks of a group read the same ones, before and after a stop within an epoch."""
    with started(tmp_path / "one", data, layout, hold="step: 2/") as run:
        run.wait_for("step: 2/")
        run.signal(signal.SIGTERM, ranks=[3])
        assert run.codes() == [0] * 4, run.text()
        stopped = int(re.search(r"stopped on request after step (\d+)", run.text())[1])
    saved = {folder.name for folder in (tmp_path / "one").glob("host*/checkpoints/step-*")}
    assert saved == {f"step-{stopped:08d}"}
    assert f"step-{stopped:08d}, " in train(tmp_path / "one", data, layout)
    train(tmp_path / "whole", data, layout)
    one, whole = (load_file(tmp_path / run / "host0" / "model" / "model.safetensors") for run in ("one", "whole"))
    assert all(torch.equal(one[name], whole[name]) for name in whole)
    ends = [[epoch["val_loss"] for epoch in epochs(tmp_path / run / "host0")] for run in ("one", "whole")]
    assert ends[0] == ends[1]


@pytest.mark.slow
@needs_mpi
def test_two_hosts_have_the_same_losses_under_each_engine(data, straight, tmp_path):
    folder, text = data
    words = once([*FEW, "--model", str(folder), "--train", str(text), *LAYOUTS["tp2xdp2"][2], "--epochs", "1"])
    found = {}
    for engine in ("native", "torchrun", "mpirun"):
        (tmp_path / engine).mkdir()
        done = simulate(tmp_path / engine, "-j", "2x2", "--engine", engine, "ddp", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        (epoch,) = epochs(tmp_path / engine / "algorun-simulate" / "algo-1")
        found[engine] = [epoch[key] for key in ("train_loss", "val_loss", "val_accuracy")]
    (alone,) = epochs(straight("alone") / "first" / "host0")
    assert found["torchrun"] == found["native"] == found["mpirun"]
    assert found["native"] == pytest.approx(
        [alone[key] for key in ("train_loss", "val_loss", "val_accuracy")], rel=1e-4
    )


SGD = ["--optimizer", "sgd", "--momentum", "0", "--lr", "1", "--weight-decay", "0"]
CLIPPED = ["--epochs", "1", *SGD, "--clip-norm", "0.02"]


@pytest.fixture(scope="module")
def clipped(tmp_path_factory, data):
    """The weights of the folder, and those that one process makes of them. Without the limit they would go elsewhere."""
    ends = {}
    for limit in ("0.02", "0.01"):
        base = tmp_path_factory.mktemp("clipped")
        train(base, data, "alone", *CLIPPED, "--clip-norm", limit)
        ends[limit] = load_file(base / "host0" / "model" / "model.safetensors")
    start = load_file(data[0] / "model.safetensors")
    moved = {limit: sum(float((end[name] - start[name]).norm()) for name in end) for limit, end in ends.items()}
    assert moved["0.01"] < 0.7 * moved["0.02"]
    return start, ends["0.02"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp2", "tp2xshard2", "pp2xtp2"])
def test_clipped_gradients_move_weights_as_in_one_process(data, clipped, tmp_path, layout):
    """With SGD, whose steps are as long as the gradient; AdamW's hardly feel a wrong norm."""
    start, one = clipped
    train(tmp_path, data, layout, *CLIPPED)
    other = load_file(tmp_path / "host0" / "model" / "model.safetensors")
    for name, weight in one.items():
        assert float((other[name] - weight).norm()) <= 1e-3 * float((weight - start[name]).norm()), name


@pytest.mark.slow
@pytest.mark.parametrize(("world", "layout"), [(2, "0,1,bf16,2"), (4, "0,2,bf16,2")])
def test_bf16_computes_what_one_process_does_in_bf16(tmp_path, world, layout):
    folders = [write(tmp_path / kind, kind) for kind in ("llama", "qwen3")]
    alone = run(tmp_path / "alone", 1, folders, ["0,1"], "bf16")
    found = steps(tmp_path / "ranks", world, folders, [layout])
    for kind in ("llama", "qwen3"):
        far = distances(found[kind][layout], alone[kind]["0,1,bf16"])
        print(f"{kind} {layout}: {max(far.values()):.1e}")
        assert max(far.values()) < NEAR["bf16"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "targets", "layouts"),
    [("llama", ("q_proj", "down_proj"), ("tp2", "tp2xshard2")), ("mixtral whole", ("q_proj",), ("tp2",))],
)
def test_merged_adapters_are_those_of_one_process(tmp_path, kind, targets, layouts):
    """Merged, the artifact is a folder as any other: experts have the names and shapes of the folder that the job was given."""
    folder, text = made_of(kind, tmp_path), write_text(tmp_path / "text", 60)
    options = ["--lora", "2", "--lora-targets", ",".join(targets), "--lr", "0.02", "--merge", "True", "--epochs", "1"]
    for layout in ("alone", *layouts):
        train(tmp_path / layout, (folder, text), layout, *options)
    start = load_file(folder / "model.safetensors")
    one, *others = (
        load_file(tmp_path / layout / "host0" / "model" / "model.safetensors") for layout in ("alone", *layouts)
    )
    assert one.keys() == start.keys()
    for name, weight in one.items():
        moved = float((weight - start[name]).norm())
        assert (moved > 0) == any(target in name for target in targets), name
        for other in others:
            assert float((other[name] - weight).norm()) <= 1e-2 * moved, name


@pytest.mark.slow
def test_whole_experts_are_saved_by_name_and_go_on_in_other_layouts(tmp_path):
    """A folder of Mixtral has three matrices for each expert; a checkpoint has two for all experts of a layer."""
    data = made_of("mixtral whole", tmp_path), write_text(tmp_path / "text", 120)
    ends = {}
    for wrote, layouts in {"alone": ("alone", "tp2"), "tp2": ("alone", "tp2xshard2")}.items():
        said = train(tmp_path / wrote, data, wrote, "--epochs", "1")
        assert ("has 1 / 2 of them, whole" in said) == (wrote == "tp2")
        saved = model_state(united(tmp_path / wrote, tmp_path / wrote / "saved"))
        artifact = AutoModelForCausalLM.from_pretrained(tmp_path / wrote / "host0" / "model").state_dict()
        assert saved.keys() == {f"model.{name}" for name in artifact}
        assert all(torch.equal(saved[f"model.{name}"], weight) for name, weight in artifact.items())
        for reads in layouts:
            base = tmp_path / wrote / reads
            for number in range(LAYOUTS[reads][0]):
                united(tmp_path / wrote, base / f"host{number}" / "checkpoints")
            assert "resumed: " in train(base, data, reads)
            epoch = epochs(base / "host0")[-1]
            ends[wrote, reads] = [epoch[key] for key in ("train_loss", "val_loss", "val_accuracy")]
    for losses in ends.values():
        assert losses == pytest.approx(ends["alone", "alone"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp2", "tp2xdp2", "tp2xshard2", "pp2xtp2"])
def test_the_same_layout_resumes_bit_identical(straight, data, tmp_path, layout):
    shutil.copytree(straight(layout) / "first", tmp_path / "one")
    train(tmp_path / "one", data, layout)
    train(tmp_path / "whole", data, layout)
    one, whole = (load_file(tmp_path / run / "host0" / "model" / "model.safetensors") for run in ("one", "whole"))
    assert all(torch.equal(one[name], whole[name]) for name in one)


# What a folder has, changes of its config, options, and words of the error.
REFUSED = {
    "no folder": (None, {}, [], "--tp: 2, with the embedded vit; allowed: with a Hugging Face folder"),
    "no plan": ("gpt2", {}, [], "--tp: 2: .*GPT2LMHeadModel has no tensor parallel plan in transformers"),
    "no plan for images": ("vit", {}, [], "--tp: 2: .*ViTForImageClassification has no tensor parallel plan"),
    "heads": ("llama", {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3}, [], "num_attention_heads is 3 and num_key_value_heads is 3, which 2 ranks cannot share; allowed: 1, 3;"),
    "heads of keys": ("llama", {"num_key_value_heads": 1}, [], "num_key_value_heads is 1, which 2 ranks cannot share; allowed: 1;"),
    "inner size": ("llama", {"intermediate_size": 45}, [], "intermediate_size is 45, which 2 ranks cannot share; allowed: 1;"),
    "no layers": ("bamba", {}, [], "its plan in transformers splits no layer"),
    "experts": ("qwen3_moe", {"num_local_experts": 3, "moe_intermediate_size": 20}, [], "transformers' plan fails: RuntimeError: strides should be multiple of 16 bytes; allowed: "),
    "quantised": ("llama", {"quantization_config": {"quant_method": "bitsandbytes"}}, [], "quantization_config"),
}  # fmt: skip


@pytest.mark.slow(but=["no folder", "heads of keys"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_a_model_cannot_have_is_one_error_of_all_ranks(ranks, tmp_path, case):
    kind, changes, options, words = REFUSED[case]
    args = ["--tp", "2", "--epochs", "1", *options]
    if kind:
        args += ["--model", str(made(tmp_path / kind, kind, changes))]
    if kind not in (None, "vit"):
        args += ["--train", str(write_text(tmp_path / "text", 20)), "--context", "16"]
    job = ranks(1, 2, *args)
    assert job.codes() == [64, 64], job.text()
    assert re.search(words, job.text()), job.text()
    assert "fix: " in job.text()
    assert "step:" not in job.text()


@pytest.mark.slow
def test_a_group_on_two_hosts_is_a_warning_and_trains(data, tmp_path):
    folder, text = data
    words = once(
        [*FEW, "--model", str(folder), "--train", str(text), "--epochs", "1", "--batch-size", "16", "--tp", "2"]
    )
    ranks = Ranks(tmp_path, 2, 1, words)
    try:
        assert ranks.codes() == [0, 0], ranks.text()
    finally:
        ranks.kill()
    assert "warning: option --tp: 2, with 1 ranks per host: a tensor group lies on 2 hosts" in ranks.text()


def made(folder, kind, changes):
    if kind == "vit":
        return write_vit(folder)
    if kind in ("bamba", "qwen3_moe"):
        return write(folder, kind, **changes)
    write_language_model(folder, kind, **{key: value for key, value in changes.items() if key != "quantization_config"})
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--tp", "3"], "option --tp: 3 does not divide the 4 ranks; allowed: 1, 2, 4; fix: "),
        (["--tp", "2", "--shard", "4"], "option --shard: 4 does not divide the 2 tensor groups; allowed: 1, 2, all"),
        (["--tp", "0"], "option --tp: '0' from the command line is not allowed; allowed: a whole number of at least 1"),
        (["--tp", "2", "--compile", "True"], "option --compile: with --tp 2; allowed: with --tp 1"),
    ],
)
def test_what_no_model_can_have_is_refused_before_any_rank_starts(words, text, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("4\n"))
    with pytest.raises(UserError, match=re.escape(text)):
        check.main(["ddp", *words])
